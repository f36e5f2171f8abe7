//! `/v1/messages` and `/v1/messages/count_tokens`.

use serde_json::Value;

use super::{Body, Context, check_auto_choice, common, content};
use crate::asked::{Asked, PromptIn, Sampling, ToolChoice};
use crate::conversation::{Call, Conversation, Part, Role, Tool, Turn, canonical_text};
use crate::error::{Api, ApiError};

pub(super) fn parse(body: Body<'_>, context: Context<'_>) -> Result<Asked, ApiError> {
    let mut asked = common(Api::Messages, body, context)?;
    // The stream's last event always carries usage.
    asked.include_usage = true;
    let max_tokens = body.count("max_tokens", 1)?.ok_or_else(|| ApiError::missing("max_tokens"))?;
    asked.sampling = Sampling {
        max_tokens: Some(max_tokens),
        stop: body.texts("stop_sequences")?.into_iter().filter(|s| !s.is_empty()).collect(),
        ..Sampling::default()
    };
    let (conversation, choice) = conversation(body)?;
    asked.choice = choice;
    asked.parallel_calls =
        body.get("tool_choice").and_then(|c| c.get("disable_parallel_tool_use")) != Some(&Value::Bool(true));
    asked.prompts = vec![PromptIn { tokens: conversation.render(true), text: None }];
    asked.conversation = Some(conversation);
    check_auto_choice(&asked, context)?;
    Ok(asked)
}

/// The prompt of either route; `count_tokens` has no limits.
pub(crate) fn conversation(body: Body<'_>) -> Result<(Conversation, ToolChoice), ApiError> {
    let mut conversation = Conversation { tools: tools(body)?, turns: Vec::new() };
    let choice = choice(body, &conversation.tools)?;
    if choice == ToolChoice::None {
        conversation.tools.clear();
    }
    let system = content::parts(body.get("system"))?;
    if !system.is_empty() {
        conversation.push(Turn { role: Role::System, parts: system });
    }
    for message in super::chat::messages(body)? {
        turns(message, &mut conversation)?;
    }
    Ok((conversation, choice))
}

/// A user message with tool results becomes a message of its own for each result.
fn turns(message: &Value, conversation: &mut Conversation) -> Result<(), ApiError> {
    let Value::Object(map) = message else { return Err(ApiError::wrong_type("messages", "dictionary")) };
    let message = Body(map);
    let role = content::role(message.text("role")?.ok_or_else(|| ApiError::missing("role"))?);
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) => blocks.as_slice(),
        other => {
            conversation.push(Turn { role, parts: content::parts(other)? });
            return Ok(());
        }
    };
    let mut pending = Vec::new();
    for block in blocks {
        match block.get("type").and_then(Value::as_str) {
            Some("tool_use" | "server_tool_use") => {
                let name = block.get("name").and_then(Value::as_str).unwrap_or_default();
                let arguments = block.get("input").map(canonical_text).unwrap_or_default();
                pending.push(Part::Call(Call { namespace: None, name: name.to_owned(), arguments }));
            }
            Some("tool_result") => {
                if !pending.is_empty() {
                    conversation.push(Turn { role, parts: std::mem::take(&mut pending) });
                }
                let parts = content::parts(block.get("content"))?;
                conversation.push(Turn { role: Role::Tool, parts });
            }
            _ => pending.extend(content::parts(Some(&Value::Array(vec![block.clone()])))?),
        }
    }
    if !pending.is_empty() || blocks.is_empty() {
        conversation.push(Turn { role, parts: pending });
    }
    Ok(())
}

fn tools(body: Body<'_>) -> Result<Vec<Tool>, ApiError> {
    body.list("tools")?
        .unwrap_or_default()
        .iter()
        .map(|tool| {
            let name = tool.get("name").and_then(Value::as_str).ok_or_else(|| ApiError::missing("name"))?;
            Ok(content::tool(name, tool.get("description"), tool.get("input_schema")))
        })
        .collect()
}

fn choice(body: Body<'_>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let Some(choice) = body.object("tool_choice")? else { return Ok(ToolChoice::Auto) };
    let kind = choice.text("type")?.unwrap_or_default();
    if kind != "none" && body.get("tools").is_none() {
        let message = "When using `tool_choice`, `tools` must be set.";
        return Err(ApiError::bad_request(message).with_param("tool_choice"));
    }
    match kind {
        "auto" => Ok(ToolChoice::Auto),
        "any" => Ok(ToolChoice::Required),
        "none" => Ok(ToolChoice::None),
        "tool" => super::chat::named(choice.text("name")?.unwrap_or_default(), tools),
        _ => Err(ApiError::validation(
            "literal_error",
            "'tool_choice', 'type'",
            "Input should be auto, any, tool or none",
        )),
    }
}
