//! Who calls: keys and tenants.
//!
//! Invariants: I-AUTH-1 with keys configured nobody gets past without one; I-AUTH-3 a tenant header counts only
//! where a trusted proxy is configured.
//! Decided: keys are compared in time that does not depend on where they differ.

use http::{HeaderMap, header};
use tandem_dialect::ErrorKind;
use tandem_types::TenantId;

use crate::config::Tenancy;

/// The tenant of a request.
pub(crate) fn tenant(tenancy: &Tenancy, headers: &HeaderMap) -> Result<TenantId, ErrorKind> {
    let by_key = if tenancy.keys.is_empty() {
        TenantId::default()
    } else {
        let presented = presented(headers).ok_or(ErrorKind::Unauthorized)?;
        // All keys are looked at, whichever fits.
        let mut found = None;
        for (key, tenant) in &tenancy.keys {
            if same(key.as_bytes(), presented.as_bytes()) {
                found = Some(tenant);
            }
        }
        found.cloned().ok_or(ErrorKind::Unauthorized)?
    };
    match &tenancy.trusted_header {
        Some(name) => match headers.get(name) {
            Some(value) => {
                let text = value.to_str().map_err(|_| ErrorKind::BadRequest)?;
                TenantId::new(text).map_err(|_| ErrorKind::BadRequest)
            }
            None => Ok(by_key),
        },
        None => Ok(by_key),
    }
}

/// The key that a client shows, in OpenAI's way or in Anthropic's.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|text| {
        let (scheme, key) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0u8, |differing, (a, b)| differing | (a ^ b));
    std::hint::black_box(differing) == 0 && a.len() == b.len()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in list {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    /// I-AUTH-1, I-AUTH-3.
    #[test]
    fn keys_in_both_ways_and_tenants() {
        let id = |text: &str| TenantId::new(text).expect("valid");
        let keyed = Tenancy {
            keys: [("k1".to_owned(), id("a")), ("k2".to_owned(), id("b"))].into(),
            ..Tenancy::default()
        };
        for (list, wanted) in [
            (vec![("authorization", "Bearer k1")], Ok(id("a"))),
            (vec![("authorization", "bearer  k2")], Ok(id("b"))),
            (vec![("x-api-key", "k2")], Ok(id("b"))),
            (vec![("authorization", "Basic k1")], Err(ErrorKind::Unauthorized)),
            (vec![("authorization", "Bearer k")], Err(ErrorKind::Unauthorized)),
            (vec![("authorization", "Bearer k11")], Err(ErrorKind::Unauthorized)),
            (vec![("x-tenant-id", "a")], Err(ErrorKind::Unauthorized)),
            (vec![], Err(ErrorKind::Unauthorized)),
        ] {
            assert_eq!(tenant(&keyed, &headers(&list)), wanted, "{list:?}");
        }
        let open = Tenancy::default();
        assert_eq!(tenant(&open, &headers(&[("x-tenant-id", "a")])), Ok(TenantId::default()));
        let trusting = Tenancy { trusted_header: Some("x-tenant-id".parse().expect("a name")), ..open };
        assert_eq!(tenant(&trusting, &headers(&[("x-tenant-id", "a")])), Ok(id("a")));
        assert_eq!(tenant(&trusting, &headers(&[("x-tenant-id", "a b")])), Err(ErrorKind::BadRequest));
        assert_eq!(tenant(&trusting, &headers(&[])), Ok(TenantId::default()));
    }
}
