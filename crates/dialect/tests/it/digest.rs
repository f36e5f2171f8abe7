use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tandem_dialect::parse_request;
use tandem_types::Dialect;

fn digest(body: &str) -> u128 {
    parse_request(Dialect::Chat, body.as_bytes())
        .unwrap_or_else(|error| panic!("{error}: {body}"))
        .facts
        .digest
}

/// I-DIA-JSON-3.
#[test]
fn form_does_not_matter() {
    let plain = r#"{"model":"m","messages":[{"role":"user","content":"aé/b"},1,2.5],"n":null}"#;
    for other in [
        r#" { "n" : null , "messages" : [ { "content" : "a\u00e9\/b" , "role" : "user" } , 1 , 25e-1 ] , "model" : "m" } "#,
        r#"{"n":3,"model":"x","model":"m","messages":[{"role":"user","role":"user","content":"aé/b"},1,2.50],"n":null}"#,
        "{\"\\u006dodel\":\"m\",\r\n\t\"messages\":[{\"role\":\"user\",\"content\":\"a\\u00E9/b\"},1,2.5],\"n\":null}",
    ] {
        assert_eq!(digest(other), digest(plain), "{other}");
    }
    assert_eq!(digest(r#"{"a":"\ud83d\ude00"}"#), digest(r#"{"a":"😀"}"#));
    // The digest has no say of a dialect.
    let messages = parse_request(Dialect::Messages, plain.as_bytes()).expect("body");
    assert_eq!(messages.facts.digest, digest(plain));
}

#[test]
fn meaning_matters() {
    let all = [
        r#"{}"#,
        r#"{"a":null}"#,
        r#"{"a":false}"#,
        r#"{"a":true}"#,
        r#"{"a":0}"#,
        r#"{"a":0.0}"#,
        r#"{"a":1}"#,
        r#"{"a":1.0}"#,
        r#"{"a":-1}"#,
        r#"{"a":10}"#,
        r#"{"a":18446744073709551616}"#,
        r#"{"a":18446744073709551617}"#,
        r#"{"a":1e400}"#,
        r#"{"a":NaN}"#,
        r#"{"a":"1"}"#,
        r#"{"a":"null"}"#,
        r#"{"a":""}"#,
        r#"{"a":[]}"#,
        r#"{"a":[[]]}"#,
        r#"{"a":{}}"#,
        r#"{"a":[1,2]}"#,
        r#"{"a":[2,1]}"#,
        r#"{"a":[1,[2]]}"#,
        r#"{"a":[[1],2]}"#,
        r#"{"a":[1],"b":[2]}"#,
        r#"{"a":[2],"b":[1]}"#,
        r#"{"a":{"b":1},"c":{}}"#,
        r#"{"a":{},"c":{"b":1}}"#,
        r#"{"a":"\ud83d"}"#,
        r#"{"a":"\ud83e"}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"A":1}"#,
    ];
    for (at, first) in all.iter().enumerate() {
        for second in &all[at + 1..] {
            let (one, other) = (digest(first), digest(second));
            assert_ne!(one, other, "{first} and {second}");
        }
    }
    assert_eq!(digest(r#"{"a":1,"a":2}"#), digest(r#"{"a":2}"#));
    assert_eq!(digest(r#"{"a":-0}"#), digest(r#"{"a":0}"#));
}

/// I-DIA-JSON-2: what is remembered of an object ends at the bound.
#[test]
fn very_wide_objects_have_a_digest_that_may_depend_on_their_order() {
    let wide = |names: &mut dyn Iterator<Item = u32>| {
        let members: Vec<String> = names.map(|name| format!("\"{name}\":{name}")).collect();
        digest(&format!("{{{}}}", members.join(",")))
    };
    assert_eq!(wide(&mut (0..128)), wide(&mut (0..128).rev()));
    // Beyond the bound two orders may be told apart, but repetition and change must be seen.
    assert_eq!(wide(&mut (0..2000)), wide(&mut (0..2000)));
    assert_ne!(wide(&mut (0..2000)), wide(&mut (0..1999)));
    assert_ne!(wide(&mut (0..2000)), wide(&mut (1..2001)));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1000..1000_i32).prop_map(|n| json!(f64::from(n) / 8.0)),
        "[a-z\"\\\\\n/é😀]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-d\"é]{0,3}", inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Writes `value` with members in an order, white space and escapes that `dice` decide.
fn write(value: &Value, dice: &mut dyn FnMut(usize) -> usize, out: &mut String) {
    let space = |dice: &mut dyn FnMut(usize) -> usize, out: &mut String| {
        out.push_str(["", " ", "\n\t", "\r"][dice(4)])
    };
    let text = |text: &str, dice: &mut dyn FnMut(usize) -> usize, out: &mut String| {
        out.push('"');
        for unit in text.chars() {
            if dice(3) == 0 || matches!(unit, '"' | '\\' | '\n') {
                for code in unit.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{code:04X}"));
                }
            } else {
                out.push(unit);
            }
        }
        out.push('"');
    };
    space(dice, out);
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for at in (1..members.len()).rev() {
                members.swap(at, dice(at + 1));
            }
            out.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                space(dice, out);
                text(name, dice, out);
                space(dice, out);
                out.push(':');
                write(member, dice, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write(item, dice, out);
            }
            out.push(']');
        }
        Value::String(string) => text(string, dice, out),
        other => out.push_str(&other.to_string()),
    }
    space(dice, out);
}

/// Changes the `nth` scalar of `value`; returns how many are left to skip.
fn change(value: &mut Value, nth: usize) -> Result<(), usize> {
    match value {
        Value::Array(items) => items.iter_mut().try_fold(nth, |left, item| match change(item, left) {
            Ok(()) => Err(()),
            Err(left) => Ok(left),
        }),
        Value::Object(members) => members.values_mut().try_fold(nth, |left, item| match change(item, left) {
            Ok(()) => Err(()),
            Err(left) => Ok(left),
        }),
        scalar if nth == 0 => {
            *scalar = match scalar {
                Value::Null => json!(false),
                Value::Bool(bool) => json!(!*bool),
                Value::Number(number) if number.is_f64() => {
                    json!(number.as_f64().unwrap_or_default() + 0.125)
                }
                Value::Number(number) => json!(number.as_i64().unwrap_or_default() ^ 1),
                Value::String(string) => json!(format!("{string}.")),
                _ => json!(null),
            };
            Err(())
        }
        _ => Ok(nth - 1),
    }
    .map_or(Ok(()), Err)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn shuffled_and_reformatted_bodies_are_equal_and_changed_ones_are_not(
        members in prop::collection::btree_map("[a-e]{1,2}", value(), 1..6),
        seed in any::<u64>(),
        nth in 0..12_usize,
    ) {
        let body = Value::Object(members.into_iter().collect());
        let mut state = seed | 1;
        let mut dice = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap_or_default() % sides
        };
        let mut other = String::new();
        write(&body, &mut dice, &mut other);
        prop_assert_eq!(digest(&body.to_string()), digest(&other), "{} and {}", body, other);
        let mut changed = body.clone();
        if change(&mut changed, nth).is_ok() {
            prop_assert_ne!(&body, &changed);
            prop_assert_ne!(digest(&body.to_string()), digest(&changed.to_string()));
        }
    }
}
