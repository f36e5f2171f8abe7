use tandem_dialect::Route;
use tandem_types::Dialect;

/// I-DIA-ROUTE-1.
#[test]
fn every_path_that_engines_and_harnesses_use_has_its_route() {
    let post = [
        ("/v1/chat/completions", Route::Turn(Dialect::Chat)),
        ("/v1/completions", Route::Turn(Dialect::Completions)),
        ("/v1/responses", Route::Turn(Dialect::Responses)),
        ("/v1/messages?beta=true", Route::Turn(Dialect::Messages)),
        ("/v1/messages/", Route::Turn(Dialect::Messages)),
        ("/v1/messages/count_tokens?beta=true", Route::CountTokens),
        ("/tokenize", Route::Tokenize),
        ("/v1/tokenize", Route::Tokenize),
        ("/detokenize", Route::Detokenize),
        ("/v1/embeddings", Route::Embeddings),
        ("/v2/rerank", Route::Rerank),
        ("/score", Route::Score),
        ("/v1/chat", Route::Other),
        ("/V1/messages", Route::Other),
        ("", Route::Other),
        ("/", Route::Other),
    ];
    for (target, route) in post {
        assert_eq!(Route::of("POST", target), route, "POST {target}");
    }
    assert_eq!(Route::of("GET", "/v1/models?limit=1"), Route::Models);
    assert_eq!(Route::of("HEAD", "/api/hello"), Route::Hello);
    assert_eq!(Route::of("GET", "/v1/responses"), Route::ResponsesSocket);
}

#[test]
fn a_model_id_may_have_slashes_escaped_or_not() {
    for target in ["/v1/models/org/name", "/v1/models/org%2Fname?x=1", "/v1/models/org%2fname/"] {
        assert_eq!(Route::of("GET", target), Route::Model("org/name".to_owned()), "{target}");
    }
    for target in ["/v1/models/%zz", "/v1/models/%C3", "/v1/models/%4"] {
        assert_eq!(Route::of("GET", target), Route::Other, "{target}");
    }
    assert_eq!(Route::of("GET", "/v1/models/"), Route::Models);
}

/// I-DIA-ROUTE-2.
#[test]
fn a_known_path_with_a_wrong_method_is_told_apart_from_an_unknown_one() {
    assert_eq!(Route::of("GET", "/v1/chat/completions"), Route::MethodNotAllowed("POST"));
    assert_eq!(Route::of("PUT", "/v1/responses"), Route::MethodNotAllowed("POST"));
    assert_eq!(Route::of("DELETE", "/v1/models/m"), Route::MethodNotAllowed("GET, HEAD"));
    assert_eq!(Route::of("POST", "/api/hello"), Route::MethodNotAllowed("GET, HEAD"));
    assert_eq!(Route::of("post", "/v1/messages"), Route::MethodNotAllowed("POST"));
    assert_eq!(Route::of("GET", "/nothing"), Route::Other);
}
