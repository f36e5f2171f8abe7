//! Token look-ups.

use bytes::Bytes;
use tandem_engines::RenderError;
use tandem_types::Dialect;

use crate::net::{Fleet, Net, SGLANG_MODELS, Script, secs, worker};

const RENDERED: &str = include_str!("../fixtures/vllm-0.32.0-render.json");
const TOKENIZED: &str = include_str!("../fixtures/vllm-0.32.0-tokenize.json");
/// Both fixtures are answers to the same prompt.
const TOKENS: [u32; 12] = [1, 1322, 205, 78, 79, 2, 205, 1, 369, 79, 980, 205];

async fn render(fleet: &Fleet, dialect: Dialect, body: &'static str) -> Result<Vec<u32>, RenderError> {
    fleet.engines.render(worker(0, 0), dialect, Bytes::from_static(body.as_bytes())).await
}

#[tokio::test(start_paused = true)]
async fn vllm_renders_every_dialect_with_the_body_as_sent() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    let many = format!("[{RENDERED}]");
    for (dialect, path, answer) in [
        (Dialect::Chat, "/v1/chat/completions/render", RENDERED),
        (Dialect::Completions, "/v1/completions/render", many.as_str()),
        (Dialect::Responses, "/v1/responses/render", RENDERED),
        (Dialect::Messages, "/v1/messages/render", RENDERED),
    ] {
        script.set(path, 200, answer);
        let body = "{ \"model\": \"tiny\",  \"odd\": 1e2 }";
        assert_eq!(render(&fleet, dialect, body).await.expect("tokens"), TOKENS, "{path}");
        assert_eq!(script.seen(path).first().map(|s| s.body.clone()).as_deref(), Some(body), "{path}");
    }
    assert_eq!(script.seen("/tokenize").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn tokenize_stands_in_where_render_is_off() {
    let net = Net::new();
    let script = Script::vllm();
    script.set("/v1/chat/completions/render", 403, "{}");
    script.set("/tokenize", 200, TOKENIZED);
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    assert_eq!(render(&fleet, Dialect::Chat, "{}").await.expect("tokens"), TOKENS);
    let refused = render(&fleet, Dialect::Messages, "{}").await;
    assert!(matches!(refused, Err(RenderError::Unsupported)), "{refused:?}");
}

// I-REN-2.
#[tokio::test(start_paused = true)]
async fn an_engine_without_any_such_route_is_asked_once() {
    let net = Net::new();
    let script = Script::sglang();
    script.set("/v1/models", 200, SGLANG_MODELS);
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    for _ in 0..3 {
        let got = render(&fleet, Dialect::Chat, "{}").await;
        assert!(matches!(got, Err(RenderError::Unsupported)), "{got:?}");
    }
    assert_eq!(script.seen("/tokenize").len(), 1);
}

// I-REN-1.
#[tokio::test(start_paused = true)]
async fn look_ups_are_bounded_in_number_and_time() {
    let net = Net::new();
    let script = Script::vllm();
    script.set_slow("/v1/chat/completions/render", 200, RENDERED, secs(60));
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    let slow = || render(&fleet, Dialect::Chat, "{}");
    let began = net.now();
    let asked = async {
        tokio::time::sleep(secs(1)).await;
        script.seen("/v1/chat/completions/render").len()
    };
    let (a, b, c, d, fifth, asked) = tokio::join!(slow(), slow(), slow(), slow(), slow(), asked);
    assert_eq!(asked, 4);
    for got in [a, b, c, d] {
        assert!(matches!(got, Err(RenderError::NoAnswer(_))), "{got:?}");
    }
    // It waits as long as a look-up may take; the four slots come free at that very moment.
    assert!(matches!(fifth, Err(RenderError::Busy | RenderError::NoAnswer(_))), "{fifth:?}");
    assert!(net.now() - began <= secs(10));
}

// I-REN-1.
#[tokio::test(start_paused = true)]
async fn one_look_up_too_many_waits_for_a_slot() {
    let net = Net::new();
    let script = Script::vllm();
    script.set_slow("/v1/chat/completions/render", 200, RENDERED, secs(2));
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    let slow = || render(&fleet, Dialect::Chat, "{}");
    let (a, b, c, d, e) = tokio::join!(slow(), slow(), slow(), slow(), slow());
    for got in [a, b, c, d, e] {
        assert!(got.is_ok(), "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_and_nonsense_are_told_apart() {
    let net = Net::new();
    let script = Script::vllm();
    net.serve("a:1", &script);
    let mut fleet = Fleet::start(&net, &["a:1"]);
    fleet.next().await;
    script.set("/v1/chat/completions/render", 400, "{\"error\":{}}");
    let got = render(&fleet, Dialect::Chat, "{}").await;
    assert!(matches!(got, Err(RenderError::Refused(400))), "{got:?}");
    for nonsense in ["", "[]", "{\"token_ids\":[-1]}", "{\"token_ids\":\"x\"}"] {
        script.set("/v1/chat/completions/render", 200, nonsense);
        let got = render(&fleet, Dialect::Chat, "{}").await;
        assert!(matches!(got, Err(RenderError::Garbage)), "{nonsense}: {got:?}");
    }
    fleet.engines.remove(tandem_types::EngineId(0));
    let got = render(&fleet, Dialect::Chat, "{}").await;
    assert!(matches!(got, Err(RenderError::Gone)), "{got:?}");
}
