//! Request heads: any soup of headers gives an identity or none, always the same, within its bounds, and can be
//! explained.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tandem_dialect::parse_request;
use tandem_identity::{IdentityConfig, RequestHead, explain, identify};
use tandem_types::{Dialect, TenantId, TurnFacts};

/// The first byte holds switches. Then come lines: the path, and headers as they stand in a request.
pub fn check(data: &[u8]) {
    let [switches, head @ ..] = data else { return };
    let on = |bit: u8| switches & (1 << bit) != 0;
    let mut lines = head.split(|byte| *byte == b'\n');
    let path = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let headers: HeaderMap = lines.filter_map(header).collect();
    let method = if on(0) { Method::POST } else { Method::GET };
    let head = RequestHead { method: &method, path: &path, headers: &headers };
    let facts = on(1).then(body);
    let config = IdentityConfig {
        generic_headers: !on(2),
        body_fields: !on(3),
        trace_parent: !on(4),
        capture_headers: !on(5),
        capture_private_headers: on(6),
    };
    let tenant = TenantId::default();
    let identity = identify(&head, facts.as_ref(), &tenant, &config);
    assert_eq!(identity, identify(&head, facts.as_ref(), &tenant, &config), "twice the same");
    assert_eq!(identity.context.is_some(), identity.found_in.is_some(), "an identity was found somewhere");
    match &identity.context {
        Some(context) => {
            assert_eq!(context.program.tenant, tenant);
            assert_ne!(Some(&context.program), context.parent.as_ref(), "its own parent");
            for id in [Some(&context.program), context.parent.as_ref()].into_iter().flatten() {
                assert!(id.session.as_str().len() <= ID_BYTES_MAX, "{id}");
                assert!(id.session.as_str().bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
            }
            let other = TenantId::new("other").expect("a name");
            let theirs = identify(&head, facts.as_ref(), &other, &config).context.expect("as for the first");
            assert_eq!(theirs.program.session, context.program.session);
            assert_ne!(theirs.program, context.program, "tenants share a program");
        }
        None => assert!(identity.retry_key.is_none() && !identity.shared),
    }
    let explanation = explain(&head, facts.as_ref(), &identity, None);
    assert_eq!(explanation.found_in, identity.found_in);
    assert!(!explanation.findings.is_empty());
}

/// Longest id.
const ID_BYTES_MAX: usize = 256;

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = line.split_at(colon);
    let value = value.get(1..)?.trim_ascii();
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

fn body() -> TurnFacts {
    let body = br#"{"model":"m","prompt_cache_key":"k","messages":[{"role":"user","content":"hi"}]}"#;
    parse_request(Dialect::Chat, body).expect("a body").facts
}
