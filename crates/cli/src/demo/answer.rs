//! Reading the answers that the bundled agents get, streamed or whole, per dialect.

use anyhow::{Result, bail};
use serde_json::Value;
use tandem_types::Dialect;

use super::body::Answer;

/// Puts the parts of an answer together.
#[derive(Debug)]
pub(super) struct Reader {
    dialect: Dialect,
    answer: Answer,
    ended: bool,
}

impl Reader {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, answer: Answer::default(), ended: false }
    }

    /// Takes the data of one SSE event.
    pub(super) fn event(&mut self, data: &str) -> Result<()> {
        if data == "[DONE]" {
            return Ok(());
        }
        let value: Value = serde_json::from_str(data)?;
        if let Some(error) = value.get("error").filter(|e| !e.is_null()) {
            bail!("the stream reported an error: {error}");
        }
        match self.dialect {
            Dialect::Chat => self.chat_choice(&value["choices"][0], "delta"),
            Dialect::Completions => self.completion(&value),
            Dialect::Responses => self.responses_event(&value),
            Dialect::Messages => self.messages_event(&value),
        }
        Ok(())
    }

    /// Takes a whole answer.
    pub(super) fn whole(&mut self, body: &[u8]) -> Result<()> {
        let value: Value = serde_json::from_slice(body)?;
        match self.dialect {
            Dialect::Chat => self.chat_choice(&value["choices"][0], "message"),
            Dialect::Completions => self.completion(&value),
            Dialect::Responses => {
                for item in value["output"].as_array().into_iter().flatten() {
                    self.responses_item(item);
                }
                self.ended = true;
            }
            Dialect::Messages => {
                for block in value["content"].as_array().into_iter().flatten() {
                    self.messages_block(block);
                }
                self.ended = true;
            }
        }
        Ok(())
    }

    /// The answer, if it came to its proper end.
    pub(super) fn finish(self) -> Result<Answer> {
        if !self.ended {
            bail!("the answer ended without its last event");
        }
        Ok(self.answer)
    }

    fn chat_choice(&mut self, choice: &Value, part: &str) {
        let message = &choice[part];
        self.text(&message["content"]);
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if let Some(id) = call["id"].as_str() {
                self.answer.tool_calls.push((id.to_owned(), text_of(&function["name"]), String::new()));
            }
            if let Some(last) = self.answer.tool_calls.last_mut() {
                last.2.push_str(function["arguments"].as_str().unwrap_or_default());
            }
        }
        self.ended |= choice["finish_reason"].is_string();
    }

    fn completion(&mut self, value: &Value) {
        let choice = &value["choices"][0];
        self.text(&choice["text"]);
        self.ended |= choice["finish_reason"].is_string();
    }

    fn responses_event(&mut self, value: &Value) {
        match value["type"].as_str().unwrap_or_default() {
            "response.output_item.done" => self.responses_item(&value["item"]),
            "response.completed" => self.ended = true,
            _ => {}
        }
    }

    fn responses_item(&mut self, item: &Value) {
        match item["type"].as_str().unwrap_or_default() {
            "message" => {
                for part in item["content"].as_array().into_iter().flatten() {
                    self.text(&part["text"]);
                }
            }
            "function_call" => self.answer.tool_calls.push((
                text_of(&item["call_id"]),
                text_of(&item["name"]),
                text_of(&item["arguments"]),
            )),
            _ => {}
        }
    }

    fn messages_event(&mut self, value: &Value) {
        match value["type"].as_str().unwrap_or_default() {
            "content_block_start" => {
                let block = &value["content_block"];
                if block["type"] == "tool_use" {
                    self.answer.tool_calls.push((
                        text_of(&block["id"]),
                        text_of(&block["name"]),
                        String::new(),
                    ));
                }
            }
            "content_block_delta" => {
                let delta = &value["delta"];
                self.text(&delta["text"]);
                if let (Some(part), Some(last)) =
                    (delta["partial_json"].as_str(), self.answer.tool_calls.last_mut())
                {
                    last.2.push_str(part);
                }
            }
            "message_stop" => self.ended = true,
            _ => {}
        }
    }

    fn messages_block(&mut self, block: &Value) {
        self.text(&block["text"]);
        if block["type"] == "tool_use" {
            let call = (text_of(&block["id"]), text_of(&block["name"]), block["input"].to_string());
            self.answer.tool_calls.push(call);
        }
    }

    fn text(&mut self, value: &Value) {
        self.answer.text.push_str(value.as_str().unwrap_or_default());
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dialect: Dialect, events: &[&str]) -> Answer {
        let mut reader = Reader::new(dialect);
        for event in events {
            reader.event(event).expect("readable");
        }
        reader.finish().expect("ended")
    }

    #[test]
    fn a_streamed_tool_call_is_put_together_in_each_dialect() {
        let want = Answer {
            text: "so".to_owned(),
            tool_calls: vec![("c1".to_owned(), "Bash".to_owned(), "{\"command\":\"ls\"}".to_owned())],
        };
        let chat = [
            r#"{"choices":[{"delta":{"role":"assistant","content":"so"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"Bash","arguments":"{\"comm"}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"and\":\"ls\"}"}}]}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
            "[DONE]",
        ];
        assert_eq!(read(Dialect::Chat, &chat), want);
        let messages = [
            r#"{"type":"message_start","message":{}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"so"}}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c1","name":"Bash"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"command\":\"ls\"}"}}"#,
            r#"{"type":"message_stop"}"#,
        ];
        assert_eq!(read(Dialect::Messages, &messages), want);
        let responses = [
            r#"{"type":"response.output_item.done","item":{"type":"message","content":[{"type":"output_text","text":"so"}]}}"#,
            r#"{"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"Bash","arguments":"{\"command\":\"ls\"}"}}"#,
            r#"{"type":"response.completed","response":{}}"#,
        ];
        assert_eq!(read(Dialect::Responses, &responses), want);
    }

    #[test]
    fn a_cut_stream_and_an_error_event_are_errors() {
        let mut reader = Reader::new(Dialect::Chat);
        reader.event(r#"{"choices":[{"delta":{"content":"so"}}]}"#).expect("readable");
        assert!(reader.finish().is_err());
        assert!(Reader::new(Dialect::Chat).event(r#"{"error":{"message":"x"}}"#).is_err());
    }
}
