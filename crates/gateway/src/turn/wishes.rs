//! What one request asks of routing, in its header `x-tandem-route`.
//!
//! Form: parts between semicolons, each `name=value`: `require=a,b; tolerate=t; prefer=label:0.5; device=1;
//! temperature=0.1`. `require`, `tolerate` and `prefer` take lists between commas, the others one number.
//! Decided: a part that cannot be used is counted and left out, the others stand: a wish never fails a request.

use http::{HeaderMap, HeaderName};
use tandem_types::{LabelWish, RouteWishes};

use crate::metrics::{Family, Metrics};

/// The header.
pub(super) const ROUTE: HeaderName = HeaderName::from_static("x-tandem-route");

/// The header that asks for explanations in the answer's head.
pub(super) const EXPLAIN: HeaderName = HeaderName::from_static("x-tandem-explain");

/// Most labels of a list.
const LABELS_MAX: usize = 16;

/// Longest label.
const LABEL_BYTES_MAX: usize = 128;

/// Whether the answer's head is to say why the turn went where it went.
pub(super) fn explain(headers: &HeaderMap) -> bool {
    let asked = headers.get(EXPLAIN).and_then(|value| value.to_str().ok()).map(str::trim);
    asked.is_some_and(|text| !matches!(text, "" | "0" | "false"))
}

/// The wishes of a request; what cannot be used is counted.
pub(super) fn wishes(headers: &HeaderMap, metrics: &Metrics) -> RouteWishes {
    let mut wishes = RouteWishes::none();
    for value in headers.get_all(ROUTE) {
        let Ok(text) = value.to_str() else {
            metrics.inc(Family::RouteWishes, &[("outcome", "ignored")]);
            continue;
        };
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let outcome = if take(&mut wishes, part).is_some() { "taken" } else { "ignored" };
            metrics.inc(Family::RouteWishes, &[("outcome", outcome)]);
        }
    }
    wishes
}

/// Takes one part in; `None` = it cannot be used.
fn take(wishes: &mut RouteWishes, part: &str) -> Option<()> {
    let (name, value) = part.split_once('=')?;
    let value = value.trim();
    let weight = match name.trim() {
        "require" => return labels(&mut wishes.require, value),
        "tolerate" => return labels(&mut wishes.tolerate, value),
        "prefer" => return prefer(&mut wishes.prefer, value),
        name => wishes.weights.named(name)?,
    };
    *weight = Some(number(value)?);
    Some(())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A list counts whole or not at all: half of what is required may lead to the wrong worker.
fn labels(into: &mut Vec<String>, list: &str) -> Option<()> {
    let found = list.split(',').map(label).collect::<Option<Vec<_>>>()?;
    if into.len() + found.len() > LABELS_MAX {
        return None;
    }
    into.extend(found);
    Some(())
}

fn label(text: &str) -> Option<String> {
    let text = text.trim();
    let fits =
        !text.is_empty() && text.len() <= LABEL_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

fn prefer(into: &mut Vec<LabelWish>, list: &str) -> Option<()> {
    let wish = |text: &str| {
        let (name, weight) = text.rsplit_once(':').unwrap_or((text, "1"));
        Some(LabelWish { label: label(name)?, weight: number(weight.trim())? })
    };
    let found = list.split(',').map(wish).collect::<Option<Vec<_>>>()?;
    if into.len() + found.len() > LABELS_MAX {
        return None;
    }
    into.extend(found);
    Some(())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(text: &str) -> (RouteWishes, String) {
        let metrics = Metrics::new().expect("buckets");
        let mut headers = HeaderMap::new();
        headers.insert(ROUTE, HeaderValue::from_str(text).expect("a header value"));
        (wishes(&headers, &metrics), metrics.render())
    }

    #[test]
    fn every_part_of_a_wish_is_read() {
        let (found, _) = read(
            "require=gpu, eu; tolerate=spot; prefer=fast:0.5,old:-1,near; device=1; host=0.5; temperature=0.1",
        );
        assert_eq!(found.require, ["gpu", "eu"]);
        assert_eq!(found.tolerate, ["spot"]);
        let wish = |label: &str, weight| LabelWish { label: label.to_owned(), weight };
        assert_eq!(found.prefer, [wish("fast", 0.5), wish("old", -1.0), wish("near", 1.0)]);
        assert_eq!((found.weights.device, found.weights.host), (Some(1.0), Some(0.5)));
        assert_eq!((found.weights.temperature, found.weights.disk), (Some(0.1), None));
    }

    #[test]
    fn a_part_that_cannot_be_used_is_counted_and_the_others_stand() {
        let (found, metrics) = read("device=NaN; require=a,,b; host=x; nonsense; wish=1; queued=2");
        assert_eq!(
            found,
            RouteWishes {
                weights: tandem_types::WeightOverrides {
                    queued: Some(2.0),
                    ..tandem_types::WeightOverrides::none()
                },
                ..RouteWishes::none()
            }
        );
        assert!(metrics.contains("tandem_route_wishes_total{outcome=\"ignored\"} 5"), "{metrics}");
        assert!(metrics.contains("tandem_route_wishes_total{outcome=\"taken\"} 1"), "{metrics}");
    }

    #[test]
    fn explanations_are_asked_for_by_any_value_that_is_not_a_no() {
        for (value, asked) in [("1", true), ("true", true), ("0", false), ("false", false), ("", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(EXPLAIN, HeaderValue::from_static(value));
            assert_eq!(explain(&headers), asked, "{value:?}");
        }
        assert!(!explain(&HeaderMap::new()));
    }
}
