//! The built-in agent: enough of a model's behaviour to keep real coding harnesses going.
//!
//! - Purpose: answer a harness's turns with calls of its own shell tool, then with a text; spawn and await
//!   subagents when the prompt says so.
//! - Inputs: the conversation (with its tools); output: items of the answer. No state: what was done is read
//!   from the conversation.
//! - How it goes: the *task* is the last run of user messages that does not answer tool calls and is no
//!   notification. `[[spawn n]]` in it asks for n subagents in the first answer, awaited in the second where
//!   the harness has a tool for that; then come `[[tools n]]` shell turns (default: the script's number, or
//!   none after a spawn); then the final text.
//! - Invariants: I-AGT-1 every task ends in a text after finitely many turns; I-AGT-2 only tools on offer are
//!   called, with every required argument filled in.
//! - Sources: tool names and arguments as seen on the wire of Claude Code 2.1, Codex 0.171, OpenCode 1.18,
//!   Pi 1.6, Kimi Code 2.1, Qwen Code 0.24, OpenHands 1.16, Hermes 0.19, Cline 3.0, mini-swe-agent 2.4.

use serde_json::{Map, Value, json};

use crate::conversation::{Conversation, Role, Tool, Turn};
use crate::script::{AgentScript, ReplyItem};

const SHELLS: [&str; 11] = [
    "bash",
    "exec_command",
    "shell",
    "run_shell_command",
    "local_shell",
    "execute_bash",
    "terminal",
    "execute_command",
    "run_command",
    "run_commands",
    "run_terminal_cmd",
];
const SPAWNERS: [&str; 7] =
    ["agent", "task", "spawn_agent", "spawn_subagent", "delegate_task", "subagent", "new_task"];
const WAITERS: [&str; 2] = ["wait_agent", "wait_for_agent"];

/// Most subagents or shell turns that a prompt may ask for.
const ASKED_MAX: u32 = 64;

/// What is put into a tool's arguments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints {
    command: Option<String>,
    prompt: Option<String>,
    title: Option<String>,
    ids: Vec<String>,
}

/// The next answer.
pub(crate) fn reply(script: &AgentScript, conversation: &Conversation) -> Vec<ReplyItem> {
    let (task, since) = task(&conversation.turns);
    let done = since.iter().filter(|t| t.role == Role::Assistant).count();
    let mut step = u32::try_from(done).unwrap_or(u32::MAX);
    let named = |names: &[&str]| {
        names.iter().find_map(|name| conversation.tools.iter().find(|t| t.name.eq_ignore_ascii_case(name)))
    };
    let spawner = named(&SPAWNERS).zip(marker(&task, "spawn"));
    let mut tool_turns = marker(&task, "tools").unwrap_or(script.tool_turns);
    if let Some((spawner, children)) = spawner.filter(|(_, children)| *children > 0) {
        tool_turns = marker(&task, "tools").unwrap_or(0);
        if step == 0 {
            return (1..=children).map(|child| call(spawner, &child_hints(child))).collect();
        }
        step -= 1;
        if let Some(waiter) = named(&WAITERS) {
            if step == 0 {
                let hints = Hints { ids: spawned(since), ..Hints::default() };
                return vec![call(waiter, &hints)];
            }
            step -= 1;
        }
    }
    let shell = named(&SHELLS).or_else(|| conversation.tools.iter().find(|tool| is_shell(tool)));
    match shell {
        Some(shell) if step < tool_turns => {
            let hints = Hints { command: Some(script.command.clone()), ..Hints::default() };
            vec![ReplyItem::Text(format!("Step {}.", step + 1)), call(shell, &hints)]
        }
        _ => vec![ReplyItem::Text(script.final_text.clone())],
    }
}

fn child_hints(child: u32) -> Hints {
    Hints {
        prompt: Some(format!("Subtask {child}: list the files of this folder. [[tools 1]]")),
        title: Some(format!("Subtask {child}")),
        ..Hints::default()
    }
}

/// The text of the current task and the messages after it.
fn task(turns: &[Turn]) -> (String, &[Turn]) {
    let mut text = String::new();
    let mut after = 0;
    let mut open = true;
    for (i, turn) in turns.iter().enumerate() {
        match turn.role {
            Role::User if open => {
                let more = turn.joined();
                if !is_notification(&more) {
                    if after < i {
                        text.clear();
                    }
                    text.push_str(&more);
                    after = i + 1;
                }
            }
            Role::User | Role::System => {}
            Role::Tool => open = false,
            Role::Assistant => open = turn.calls().next().is_none(),
        }
    }
    (text, turns.get(after..).unwrap_or_default())
}

/// Word of a background subagent's end, which harnesses put into the user's mouth.
fn is_notification(text: &str) -> bool {
    ["-notification>", "_notification>", "SYSTEM NOTIFICATION"].iter().any(|mark| text.contains(mark))
}

/// `n` of the last `[[name n]]` in `text`.
fn marker(text: &str, name: &str) -> Option<u32> {
    text.rsplit("[[").find_map(|piece| {
        let (inside, _) = piece.split_once("]]")?;
        let (word, number) = inside.trim().split_once(char::is_whitespace)?;
        let number: u32 = number.trim().parse().ok()?;
        (word == name).then_some(number.min(ASKED_MAX))
    })
}

/// Ids of subagents, as the results of the spawning calls tell them.
fn spawned(turns: &[Turn]) -> Vec<String> {
    let is_id = |word: &&str| {
        word.len() == 36
            && word.bytes().enumerate().all(|(i, b)| match i {
                8 | 13 | 18 | 23 => b == b'-',
                _ => b.is_ascii_hexdigit(),
            })
    };
    let mut ids = Vec::new();
    for turn in turns.iter().filter(|turn| turn.role == Role::Tool) {
        let text = turn.joined();
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        ids.extend(words.filter(is_id).map(str::to_owned));
    }
    ids.dedup();
    ids
}

/// Whether a tool looks as if it ran commands.
pub(crate) fn is_shell(tool: &Tool) -> bool {
    let name = tool.name.to_ascii_lowercase();
    SHELLS.contains(&name.as_str())
        || ["shell", "bash", "command", "terminal"].iter().any(|word| name.contains(word))
}

/// A call of `tool` with every required argument, and those known by name, filled in.
pub(crate) fn call(tool: &Tool, hints: &Hints) -> ReplyItem {
    let mut arguments = Map::new();
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = tool
        .parameters
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if let Some(properties) = properties {
        for (name, schema) in properties {
            let must = required.contains(&name.as_str());
            match known(name, schema, tool, hints) {
                Some((value, wanted)) if must || wanted => {
                    arguments.insert(name.clone(), value);
                }
                _ if must => {
                    arguments.insert(name.clone(), filler(schema));
                }
                _ => {}
            }
        }
    } else {
        // Without a schema the usual names are the best guess.
        arguments.extend(guessed(hints));
    }
    ReplyItem::ToolCall { name: tool.name.clone(), arguments: Value::Object(arguments) }
}

fn guessed(hints: &Hints) -> Map<String, Value> {
    let mut arguments = Map::new();
    let mut put = |key: &str, value: Value| {
        arguments.insert(key.to_owned(), value);
    };
    if let Some(command) = &hints.command {
        put("command", json!(command));
        put("cmd", json!(command));
    }
    if let Some(prompt) = &hints.prompt {
        put("prompt", json!(prompt));
        put("message", json!(prompt));
        put("description", json!(hints.title));
    }
    if !hints.ids.is_empty() {
        put("ids", json!(hints.ids));
    }
    arguments
}

/// The value for an argument whose name says what it is, and whether it is worth giving if optional.
fn known(name: &str, schema: &Value, tool: &Tool, hints: &Hints) -> Option<(Value, bool)> {
    let list = types(schema).contains(&"array");
    let text = |text: &String| if list { json!([text]) } else { json!(text) };
    match name {
        "command" | "cmd" | "commands" | "script" => {
            let command = hints.command.clone().unwrap_or_else(|| "ls".to_owned());
            let value = match (name, list) {
                ("command", true) => json!(["bash", "-lc", command]),
                _ => text(&command),
            };
            Some((value, true))
        }
        "prompt" | "message" | "task" | "goal" | "instructions" | "objective" => {
            hints.prompt.as_ref().map(|prompt| (text(prompt), true))
        }
        "description" | "title" | "name" | "summary" => {
            let title = hints.title.clone().unwrap_or_else(|| "List files".to_owned());
            Some((text(&title), false))
        }
        "subagent_type" | "agent_type" | "agent" => {
            let general =
                if tool.description.contains("general-purpose") { "general-purpose" } else { "general" };
            let value = first_choice(schema).unwrap_or_else(|| json!(general));
            Some((value, hints.prompt.is_some()))
        }
        "ids" | "targets" | "agent_ids" | "agents" if !hints.ids.is_empty() => Some((json!(hints.ids), true)),
        "id" | "target" | "agent_id" => hints.ids.first().map(|id| (text(id), true)),
        _ => None,
    }
}

fn first_choice(schema: &Value) -> Option<Value> {
    schema.get("enum")?.as_array()?.first().cloned()
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// A value of the right type for an argument of which nothing is known.
fn filler(schema: &Value) -> Value {
    if let Some(constant) = schema.get("const").or_else(|| schema.get("default")) {
        return constant.clone();
    }
    if let Some(choice) = first_choice(schema) {
        return choice;
    }
    match types(schema).first() {
        Some(&"integer" | &"number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        Some(&"boolean") => json!(false),
        Some(&"array") => json!([]),
        Some(&"object") => json!({}),
        Some(&"null") => Value::Null,
        _ => json!("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{Call, Part};

    fn tool(name: &str, parameters: Value) -> Tool {
        Tool { namespace: None, name: name.to_owned(), description: String::new(), parameters }
    }

    fn called(name: &str) -> Turn {
        let call = Call { namespace: None, name: name.to_owned(), arguments: "{}".to_owned() };
        Turn { role: Role::Assistant, parts: vec![Part::Call(call)] }
    }

    fn names(items: &[ReplyItem]) -> Vec<&str> {
        items
            .iter()
            .map(|item| match item {
                ReplyItem::ToolCall { name, .. } => name.as_str(),
                _ => "text",
            })
            .collect()
    }

    /// I-AGT-1.
    #[test]
    fn a_task_takes_its_shell_turns_and_ends_and_the_next_task_begins_anew() {
        let shell = json!({"properties": {"command": {"type": "string"}, "description": {"type": "string"}},
            "required": ["command", "description"]});
        let mut c = Conversation { tools: vec![tool("Read", json!({})), tool("Bash", shell)], turns: vec![] };
        let script = AgentScript { tool_turns: 1, ..AgentScript::default() };
        c.turns.push(Turn::text(Role::User, "environment"));
        c.turns.push(Turn::text(Role::User, "do it [[tools 2]]"));
        for _ in 0..2 {
            let items = reply(&script, &c);
            assert_eq!(names(&items), ["text", "Bash"]);
            let arguments = json!({"command": "ls", "description": "List files"});
            assert!(matches!(&items[1], ReplyItem::ToolCall { arguments: a, .. } if *a == arguments));
            c.turns.push(called("Bash"));
            c.turns.push(Turn::text(Role::Tool, "a.txt"));
            // Claude Code adds reminders after the results.
            c.turns.push(Turn::text(Role::User, "<system-reminder>"));
        }
        assert_eq!(names(&reply(&script, &c)), ["text"]);
        c.turns.push(Turn::text(Role::Assistant, "All done."));
        c.turns.push(Turn::text(Role::User, "<system-reminder>\n[SYSTEM NOTIFICATION - NOT USER INPUT]"));
        assert_eq!(names(&reply(&script, &c)), ["text"]);
        c.turns.push(Turn::text(Role::Assistant, "All done."));
        c.turns.push(Turn::text(Role::User, "and now this"));
        assert_eq!(names(&reply(&script, &c)), ["text", "Bash"]);
    }

    #[test]
    fn subagents_are_spawned_awaited_by_id_and_followed_by_the_end() {
        let spawn = json!({"properties": {"message": {"type": "string"}, "agent_type": {"type": "string"}},
            "required": ["message"]});
        let wait = json!({"properties": {"ids": {"type": "array"}, "timeout_ms": {"type": "number"}},
            "required": ["ids"]});
        let tools =
            vec![tool("spawn_agent", spawn), tool("wait_agent", wait), tool("exec_command", json!({}))];
        let mut c = Conversation { tools, turns: vec![Turn::text(Role::User, "go [[spawn 2]]")] };
        let script = AgentScript::default();
        assert_eq!(names(&reply(&script, &c)), ["spawn_agent", "spawn_agent"]);
        c.turns.push(called("spawn_agent"));
        let id = "0199a1b2-aaaa-7bbb-8ccc-0123456789ab";
        c.turns.push(Turn::text(Role::Tool, format!("{{\"agent_id\":\"{id}\",\"nickname\":\"Ada\"}}")));
        let items = reply(&script, &c);
        let waits = json!({"ids": [id]});
        assert!(
            matches!(&items[0], ReplyItem::ToolCall { name, arguments } if name == "wait_agent" && *arguments == waits)
        );
        c.turns.push(called("wait_agent"));
        c.turns.push(Turn::text(Role::Tool, "done"));
        assert_eq!(names(&reply(&script, &c)), ["text"]);
    }

    /// I-AGT-2.
    #[test]
    fn required_arguments_of_any_kind_are_filled() {
        let schema = json!({"properties": {
                "command": {"type": "array"}, "security_risk": {"enum": ["LOW", "HIGH"]},
                "timeout": {"type": "integer", "minimum": 5}, "flag": {"type": ["boolean", "null"]},
                "optional": {"type": "string"}, "odd": {}},
            "required": ["command", "security_risk", "timeout", "flag", "odd"]});
        let item = call(&tool("shell", schema), &Hints::default());
        let arguments = json!({"command": ["bash", "-lc", "ls"], "security_risk": "LOW", "timeout": 5,
            "flag": false, "odd": "x"});
        assert_eq!(item, ReplyItem::ToolCall { name: "shell".to_owned(), arguments });
    }
}
