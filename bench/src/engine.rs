//! A canned engine: vLLM's control endpoints, and one chat answer of sixteen chunks, written as fast as the
//! socket takes them. It does no work, so that what is measured is the gateway.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// Chunks of an answer.
const CHUNKS: usize = 16;

const METRICS: &str = "# TYPE vllm:num_requests_running gauge\n\
vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0\n\
# TYPE vllm:num_requests_waiting gauge\n\
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 0\n\
# TYPE vllm:kv_cache_usage_perc gauge\n\
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0\n";

type Body = BoxBody<Bytes, Infallible>;

/// Serves for ever.
pub async fn serve(listen: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            // A connection that a client drops is no fault of the engine.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let response = match (parts.method, parts.uri.path()) {
        (Method::POST, "/v1/chat/completions") => chat(&body),
        (_, "/health" | "/ping") => whole("text/plain", ""),
        (_, "/version") => json(r#"{"version":"0.32.0"}"#),
        (_, "/v1/models") => json(
            r#"{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":"tiny","parent":null,"max_model_len":262144}]}"#,
        ),
        (_, "/server_info" | "/get_server_info") => {
            json(r#"{"model_path":"tiny","served_model_name":"tiny","dp_size":1,"tp_size":1}"#)
        }
        (_, "/model_info" | "/get_model_info") => json(r#"{"model_path":"tiny","is_generation":true}"#),
        (_, "/load" | "/get_load") => json(r#"{"server_load":0}"#),
        (_, "/metrics") => whole("text/plain; version=0.0.4", METRICS),
        _ => {
            let mut response =
                json(r#"{"error":{"message":"no such route","type":"NotFoundError","code":404}}"#);
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    };
    Ok(response)
}

fn chat(body: &[u8]) -> Response<Body> {
    // The prompt is long and its switches are short: gateways and clients write them at either end.
    let (head, tail) = (&body[..body.len().min(512)], &body[body.len().saturating_sub(512)..]);
    let wants =
        |needle: &[u8]| [head, tail].iter().any(|part| part.windows(needle.len()).any(|w| w == needle));
    let streamed = wants(b"\"stream\":true");
    if !streamed {
        return json(
            r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"word word word"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#,
        );
    }
    let usage = wants(b"\"include_usage\":true");
    let chunks = (0..CHUNKS).map(|n| {
        let (delta, finish) = if n + 1 == CHUNKS { ("{}", "\"stop\"") } else { (r#"{"content":" word"}"#, "null") };
        Bytes::from(format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        ))
    });
    let tail = usage
        .then(|| {
            Bytes::from_static(
                b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":15,\"total_tokens\":24}}\n\n",
            )
        })
        .into_iter()
        .chain([Bytes::from_static(b"data: [DONE]\n\n")]);
    let body = Chunks(chunks.chain(tail).collect::<Vec<_>>().into_iter());
    Response::builder()
        .header("content-type", "text/event-stream; charset=utf-8")
        .body(body.boxed())
        .unwrap_or_default()
}

/// A body whose chunks are all there, one a poll, as an engine's tokens would come.
struct Chunks(std::vec::IntoIter<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|chunk| Ok(Frame::data(chunk))))
    }
}

fn json(text: &'static str) -> Response<Body> {
    whole("application/json", text)
}

fn whole(kind: &str, text: &'static str) -> Response<Body> {
    Response::builder()
        .header("content-type", kind)
        .body(Full::new(Bytes::from_static(text.as_bytes())).boxed())
        .unwrap_or_default()
}
