//! Refusals, in the form of each engine and API.

use crate::config::MockKind;
use crate::json::{Json, Null, object};

/// An API, as far as its form of errors and answers goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    /// SGLang's own `/generate`.
    Generate,
    /// Everything that does not generate.
    Utility,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequestError", message)
    }

    /// What the schema check of the body says.
    pub(crate) fn validation(kind: &str, field: &str, says: &str) -> Self {
        let message =
            format!("1 validation error:\n  {{'type': '{kind}', 'loc': ('body', {field}), 'msg': '{says}'}}");
        Self::new(400, "Bad Request", message)
    }

    pub(crate) fn missing(field: &str) -> Self {
        Self::validation("missing", &format!("'{field}'"), "Field required")
    }

    pub(crate) fn wrong_type(field: &str, wanted: &str) -> Self {
        Self::validation(
            &format!("{}_type", wanted.replace(' ', "_")),
            &format!("'{field}'"),
            &format!("Input should be a valid {wanted}"),
        )
    }

    pub(crate) const fn with_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// The body of the answer.
    pub(crate) fn body(&self, engine: MockKind, api: Api) -> Json {
        match (engine, api) {
            (_, Api::Messages) => object! {
                "type": "error",
                "error": object! { "type": self.kind, "message": self.message },
            },
            (MockKind::Vllm, _) => object! { "error": self.fields() },
            (MockKind::Sglang, Api::Generate) => {
                object! { "error": object! { "message": self.message } }
            }
            (MockKind::Sglang, Api::Responses) => object! {
                "error": object! {
                    "message": self.message,
                    "type": "invalid_request_error",
                    "param": self.param,
                    "code": self.status,
                },
            },
            (MockKind::Sglang, _) => object! {
                "object": "error",
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            },
        }
    }

    /// The error inside a stream whose head has gone out.
    pub(crate) fn in_stream(&self, engine: MockKind, api: Api) -> String {
        match api {
            Api::Messages => format!("event: error\ndata: {}\n\n", self.body(engine, api).0),
            Api::Responses => {
                let error = object! {
                    "type": "error",
                    "code": self.kind,
                    "message": self.message,
                    "param": Null,
                    "sequence_number": 0_u32,
                };
                format!("event: error\ndata: {}\n\n", error.0)
            }
            _ => format!("data: {}\n\n", object! { "error": self.fields() }.0),
        }
    }

    fn fields(&self) -> Json {
        object! { "message": self.message, "type": self.kind, "param": self.param, "code": self.status }
    }
}
