//! Layouts that no capture has: older releases, odd values, frames of the replay.

use std::sync::Arc;

use serde_json::{Value, json};
use tandem_kvwire::{
    DecodeError, Decoded, FrameError, Layout, ReplayAnswer, Skipped, decode, encode, message, parse_message,
    parse_replay_answer, parse_replay_request, replay_answer, replay_end, replay_request,
};
use tandem_types::{BlockRemoved, BlockStored, ExtraKey, GroupKind, KvBatch, KvEvent, Tier};

fn decoded(hex_text: &str) -> Decoded {
    decode(&hex::decode(hex_text).expect("hex")).expect("a batch")
}

fn stored(hash: u64, parent: Option<u64>, tokens: Vec<u32>) -> BlockStored {
    BlockStored {
        block_hashes: vec![hash],
        parent,
        block_size: u32::try_from(tokens.len()).expect("small"),
        tokens,
        ..BlockStored::default()
    }
}

#[test]
fn vllm_0_24_map_batch_with_a_wide_header() {
    // A store of u64::MAX with group 0 and session s1, a removal of 5, a clearing; headers not minimal.
    let d = decoded(
        "93cb3ff800000000000093de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffffff\
         ffffffffb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c\
         6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f\
         737065635f6b696e64ae66756c6c5f617474656e74696f6eaa73657373696f6e5f6964a2733184a474797065ac426c6f636b\
         52656d6f766564ac626c6f636b5f6861736865739105a66d656469756da3475055a967726f75705f69647800\
         81a474797065b0416c6c426c6f636b73436c656172656400",
    );
    let mut first = stored(u64::MAX, None, vec![1, 2]);
    first.session = Some(Arc::from("s1"));
    let removed = BlockRemoved { block_hashes: vec![5], ..BlockRemoved::default() };
    assert_eq!(
        d,
        Decoded {
            batch: KvBatch {
                timestamp: 1.5,
                events: vec![KvEvent::Stored(first), KvEvent::Removed(removed), KvEvent::Cleared],
                rank: Some(0),
            },
            skipped: Skipped::default(),
        }
    );
}

#[test]
fn vllm_0_11_array_batch() {
    let d = decoded(
        "93cb3ff80000000000009297ab426c6f636b53746f72656491c40401010101c092010202c0a347505591b041\
                     6c6c426c6f636b73436c6561726564c0",
    );
    assert_eq!(d.batch.events, [KvEvent::Stored(stored(0x0101_0101, None, vec![1, 2])), KvEvent::Cleared]);
    assert_eq!(d.batch.rank, None);
}

#[test]
fn oldest_form_has_two_elements_an_integer_time_and_no_medium() {
    let d = decoded("92079196ab426c6f636b53746f72656491cfffffffffffffffffc0940102030404c0");
    assert_eq!(d.batch.timestamp.to_bits(), 7.0_f64.to_bits());
    assert_eq!(d.batch.events, [KvEvent::Stored(stored(u64::MAX, None, vec![1, 2, 3, 4]))]);
}

/// I-KVW-4.
#[test]
fn a_digest_is_its_last_eight_bytes() {
    let digest = "7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf";
    let d = decoded(&format!(
        "93079197ab426c6f636b53746f72656491c420{digest}cfffffffffffffffff940506070804c0a347505500"
    ));
    // vLLM publishes this digest as 1403909460543360175 when it publishes integers.
    let expected = stored(1_403_909_460_543_360_175, Some(u64::MAX), vec![5, 6, 7, 8]);
    assert_eq!(d.batch.events, [KvEvent::Stored(expected)]);
}

/// I-KVW-2.
#[test]
fn an_unknown_type_and_unknown_fields_cost_nothing_else() {
    // A type of tomorrow, a map event with fields of tomorrow, an array event with the fields of 0.22.
    let d = decoded(
        "93cb41daa8dbe020000093de0003a474797065ab426c6f636b50696e6e6564ac626c6f636b5f6861736865739105a6726561\
         736f6e81a1619201c0de0010a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573914db1706172656e\
         745f626c6f636b5f68617368c4200101010101010101010101010101010101010101010101010101010101010101a9746f6b\
         656e5f69647394090a0b0caa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e\
         616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae6675\
         6c6c5f617474656e74696f6ea86c6f63616c697479a54c4f43414ca96f776e657273686970c0aa73657373696f6e5f6964a3\
         732d31b36c6f6f6b61686561645f746f6b656e5f696473c0ac6675747572655f6669656c6481a17892cb3ff8000000000000\
         a1799cab426c6f636b53746f726564914e4d940d0e0f1004c0a3475055c091c000ae66756c6c5f617474656e74696f6ec000",
    );
    let mut third = stored(0x4d, Some(0x0101_0101_0101_0101), vec![9, 10, 11, 12]);
    third.session = Some(Arc::from("s-1"));
    let fourth = stored(0x4e, Some(0x4d), vec![13, 14, 15, 16]);
    assert_eq!(d.batch.events, [KvEvent::Stored(third), KvEvent::Stored(fourth)]);
    assert_eq!(d.skipped, Skipped { unknown_type: 1, ..Skipped::default() });
}

#[test]
fn salts_of_both_engines_are_one_field() {
    let vllm = decoded(
        "93cb41daa8dbe020000091de0009a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573923334b17061\
         72656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f\
         72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a874656e616e742d61\
         c000",
    );
    let sglang = decoded(
        "93cb41daa8dbe020000091de000aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392d0c33eb170\
         6172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c\
         6f72615f6964c0a66d656469756da3475055aa63616368655f73616c74a874656e616e742d61aa73657373696f6e5f6964c0\
         a96c6f72615f6e616d65c000",
    );
    // SGLang 0.5.18: positional, the salt in a trailing map.
    let array = decoded(
        "93079198ab426c6f636b53746f726564923334c0980102030405060708 04c0a347505581aa63616368655f73616c74a874656e\
         616e742d6100"
            .replace(' ', "")
            .as_str(),
    );
    for (d, first) in [(vllm, 0x33), (sglang, 0xffff_ffff_ffff_ffc3), (array, 0x33)] {
        let [KvEvent::Stored(event)] = d.batch.events.as_slice() else { panic!("one store") };
        assert_eq!(event.block_hashes.first(), Some(&first));
        assert_eq!((event.salt.as_deref(), event.extra_keys.as_slice()), (Some("tenant-a"), &[][..]));
    }
}

/// I-KVW-2.
#[test]
fn events_that_cannot_be_told_are_counted() {
    let base = |tokens: &str, size: u8, kind: &str, medium: &str| {
        let text = |t: &str| format!("{:02x}{}", 0xa0 + t.len(), hex::encode(t));
        let key = |k: &str| if k.len() < 32 { text(k) } else { panic!("long key") };
        format!(
            "86{}{}{}9105{}{tokens}{}{size:02x}{}{}{}{}",
            key("type"),
            text("BlockStored"),
            key("block_hashes"),
            key("token_ids"),
            key("block_size"),
            key("kv_cache_spec_kind"),
            text(kind),
            key("medium"),
            text(medium),
        )
    };
    let events = [
        base("920102", 2, "full_attention", "GPU"),
        base("90", 0, "full_attention", "CPU"),
        base("920102", 2, "sliding_window", "GPU"),
        base("920102", 2, "full_attention", "TAPE"),
        base("93010203", 2, "full_attention", "GPU"),
        base("92a16101", 2, "full_attention", "GPU"),
        "07".to_owned(),
        base("9292010292020 3".replace(' ', "").as_str(), 2, "mla_attention", "storage"),
    ];
    let d = decoded(&format!("93079{}{}c0", events.len(), events.concat()));
    let plain = stored(5, None, vec![1, 2]);
    // Named by hashes alone: content is unknown, the tier is not.
    let placeholder = BlockStored { tier: Tier::Host, block_hashes: vec![5], ..BlockStored::default() };
    let window = BlockStored { kind: GroupKind::Window, ..plain.clone() };
    let pairs = BlockStored { tier: Tier::Disk, lookahead: vec![vec![3]], ..plain.clone() };
    let expected = [plain, placeholder, window, pairs];
    assert_eq!(expected.each_ref().map(BlockStored::describes), [true, false, false, true]);
    assert_eq!(d.batch.events, expected.map(KvEvent::Stored));
    assert_eq!(d.skipped, Skipped { unknown_type: 0, malformed: 2, unknown_medium: 1, misaligned: 1 });
    assert_eq!(d.skipped.total(), 4);
}

/// I-KVW-1.
#[test]
fn what_is_no_batch_is_an_error() {
    assert_eq!(decode(b""), Err(DecodeError::Truncated(0)));
    assert_eq!(decode(&[0x91, 0x07]), Err(DecodeError::Type(0)));
    assert_eq!(decode(&[0xc1]), Err(DecodeError::NotMsgpack(0)));
    assert_eq!(decode(&[0x93, 0xa1, b'x', 0x90, 0xc0]), Err(DecodeError::Type(1)));
    // A length that the payload cannot hold.
    assert!(matches!(decode(&[0x92, 0x07, 0xdd, 0xff, 0xff, 0xff, 0xff]), Err(DecodeError::Truncated(_))));
    // Nesting without end in an unknown event.
    let mut deep = vec![0x92, 0x07, 0x91];
    deep.extend(std::iter::repeat_n(0x91, 100_000));
    assert!(decode(&deep).is_err());
}

#[test]
fn tiers_have_the_names_of_their_engine() {
    let batch = |tier| KvBatch {
        timestamp: 1.0,
        events: vec![KvEvent::Removed(BlockRemoved {
            block_hashes: vec![1],
            tier,
            ..BlockRemoved::default()
        })],
        rank: None,
    };
    let names = |layout| {
        [Tier::Device, Tier::Host, Tier::Disk, Tier::Shared].map(|tier| {
            let bytes = encode(&batch(tier), layout);
            let at = bytes.windows(6).position(|w| w == b"medium").expect("a medium") + 6;
            let len = usize::from(bytes[at] & 0x1f);
            String::from_utf8(bytes[at + 1..at + 1 + len].to_vec()).expect("text")
        })
    };
    assert_eq!(names(Layout::Vllm), ["GPU", "CPU", "STORAGE", "STORAGE"]);
    assert_eq!(names(Layout::Sglang), ["GPU", "CPU_PINNED", "DISK", "EXTERNAL"]);
}

#[test]
fn replay_frames() {
    let [delimiter, start] = replay_request(258);
    assert_eq!((delimiter.as_slice(), start.as_slice()), (&b""[..], &[0, 0, 0, 0, 0, 0, 1, 2][..]));
    assert_eq!(parse_replay_request(&[b"peer", &delimiter, &start]), Ok((&b"peer"[..], 258)));
    assert_eq!(parse_replay_request(&[b"peer", &start]), Err(FrameError::Count(2)));
    assert_eq!(parse_replay_request(&[b"peer", b"", b"1"]), Err(FrameError::Sequence(1)));

    let new = replay_answer(b"kv@w0@tiny", 3, vec![0x93]);
    let new: Vec<&[u8]> = new.iter().map(Vec::as_slice).collect();
    let batch = Ok(ReplayAnswer::Batch { seq: 3, payload: &[0x93] });
    // Current, current as a REQ socket shows it, older, older as a REQ socket shows it.
    for frames in [&new[..], &new[1..], &[new[0], new[2], new[3]], &new[2..]] {
        assert_eq!(parse_replay_answer(frames), batch);
    }
    let end = replay_end();
    let end: Vec<&[u8]> = end.iter().map(Vec::as_slice).collect();
    assert_eq!(hex::encode(end[2]), "ffffffffffffffff");
    for frames in [&end[..], &end[1..], &end[2..]] {
        assert_eq!(parse_replay_answer(frames), Ok(ReplayAnswer::End));
    }
    assert_eq!(parse_replay_answer(&[b"x"]), Err(FrameError::Count(1)));
    let framed = message(b"t", 1, vec![9]);
    assert_eq!(parse_message(&[&framed[0], &framed[1]]), Err(FrameError::Count(2)));
    let parsed = parse_message(&[&framed[0], &framed[1], &framed[2]]).map(|m| (m.topic, m.seq, m.payload));
    assert_eq!(parsed, Ok((&b"t"[..], 1, &[9][..])));
}

/// The msgpack of a value in JSON form; `{"bin": "hex"}` stands for bytes.
pub(crate) fn pack(value: &Value, out: &mut Vec<u8>) {
    let count = |n: usize| u16::try_from(n).expect("short").to_be_bytes();
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(on) => out.push(0xc2 + u8::from(*on)),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => {
                out.push(0xcf);
                out.extend(n.to_be_bytes());
            }
            (None, Some(n)) => {
                out.push(0xd3);
                out.extend(n.to_be_bytes());
            }
            _ => {
                out.push(0xcb);
                out.extend(n.as_f64().expect("a number").to_be_bytes());
            }
        },
        Value::String(text) => {
            out.push(0xda);
            out.extend(count(text.len()));
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            out.push(0xdc);
            out.extend(count(items.len()));
            items.iter().for_each(|item| pack(item, out));
        }
        Value::Object(entries) => {
            if let Some(Value::String(bytes)) = entries.get("bin") {
                let bytes = hex::decode(bytes).expect("hex");
                out.push(0xc5);
                out.extend(count(bytes.len()));
                out.extend(bytes);
                return;
            }
            out.push(0xde);
            out.extend(count(entries.len()));
            for (key, value) in entries {
                pack(&Value::String(key.clone()), out);
                pack(value, out);
            }
        }
    }
}

fn events(events: &Value) -> Decoded {
    let mut bytes = Vec::new();
    pack(&json!([1, events, 0]), &mut bytes);
    decode(&bytes).expect("a batch")
}

fn one(event: Value) -> BlockStored {
    match events(&Value::Array(vec![event])).batch.events.as_slice() {
        [KvEvent::Stored(stored)] => stored.clone(),
        other => panic!("{other:?}"),
    }
}

/// The same store as each version writes it. What a version does not tell stays at its default.
#[test]
fn every_array_layout() {
    let base = json!(["BlockStored", [7, 8], null, [1, 2, 3, 4], 2, 3]);
    let with = |tail: Value| {
        let mut event = base.as_array().expect("array").clone();
        event.extend(tail.as_array().expect("array").clone());
        one(Value::Array(event))
    };
    let plain = BlockStored {
        block_hashes: vec![7, 8],
        block_size: 2,
        tokens: vec![1, 2, 3, 4],
        ..stored(0, None, vec![])
    };
    let named = BlockStored { lora: Some("ad".into()), ..plain.clone() };
    let keys = json!([["ad", ["img", -1], "salt"], ["ad", ["img", -3]]]);
    let media = |offset| vec![ExtraKey::Media { id: "img".into(), offset }];
    let keyed =
        BlockStored { salt: Some("salt".into()), extra_keys: vec![media(-1), media(-3)], ..named.clone() };
    let grouped = BlockStored { group: 2, kind: GroupKind::Other, ..keyed.clone() };
    let windowed = BlockStored { kind: GroupKind::Window, window: Some(128), ..grouped.clone() };
    // SGLang to 0.5.8; vLLM to 0.13 and SGLang to 0.5.17; SGLang 0.5.18; then vLLM 0.14, 0.17, 0.20, 0.22.
    assert_eq!(with(json!([])), plain);
    assert_eq!(with(json!(["GPU"])), plain);
    assert_eq!(
        with(json!(["GPU", {"cache_salt": "salt", "more": [1]}])),
        BlockStored { salt: Some("salt".into()), ..plain.clone() }
    );
    assert_eq!(with(json!(["GPU", "ad"])), named);
    assert_eq!(with(json!(["GPU", "ad", keys])), keyed);
    assert_eq!(with(json!(["GPU", "ad", keys, 2])), grouped);
    assert_eq!(with(json!(["GPU", "ad", keys, 2, "sliding_window", 128])), windowed);
    // The first number is the group and the second the window, also without a kind between them.
    let numbered = BlockStored { window: Some(128), ..grouped.clone() };
    assert_eq!(with(json!(["GPU", "ad", keys, 2, 128])), numbered);
    // A list of media before the group, as Dynamo's publishers write it; and fields of tomorrow.
    assert_eq!(with(json!(["GPU", "ad", keys, [[{"mm": 1}], null], 2, "sliding_window", 128])), windowed);
    assert_eq!(with(json!(["GPU", "ad", keys, 2, "sliding_window", 128, {"a": 1}, true])), windowed);
    assert_eq!(
        with(json!(["GPU", "ad", keys, null, "full_attention", null])),
        BlockStored { group: 0, ..keyed }
    );
}

/// I-KVW-5: bare keys, ids alone and tagged keys of later versions.
#[test]
fn extra_keys_of_every_form() {
    let with = |parent: Value, keys: Value| {
        one(json!({
            "type": "BlockStored", "block_hashes": [7], "parent_block_hash": parent, "token_ids": [1, 2],
            "block_size": 2, "lora_name": "ad", "extra_keys": [keys],
        }))
    };
    let text = |text: &str| ExtraKey::Text(text.into());
    let bytes = |bytes: &[u8]| ExtraKey::Bytes(bytes.into());
    let media = |offset| ExtraKey::Media { id: "i".into(), offset };
    let salted = with(Value::Null, json!(["ad", "i", "s"]));
    assert_eq!((salted.salt.as_deref(), salted.extra_keys), (Some("s"), vec![vec![text("i")]]));
    // Behind the first block a text is no salt.
    let later = with(json!(3), json!(["ad", "i"]));
    assert_eq!((later.salt, later.extra_keys), (None, vec![vec![text("i")]]));
    let tagged = with(
        Value::Null,
        json!([["lora", "ad", "/p"], ["mm", "i", 4], ["cache_salt", "s"], ["prompt_embeds", {"bin": "0a0b"}]]),
    );
    assert_eq!(tagged.lora.as_deref(), Some("ad"));
    assert_eq!(
        (tagged.salt.as_deref(), tagged.extra_keys),
        (Some("s"), vec![vec![media(4), bytes(&[10, 11])]])
    );
    // What has no known form still tells blocks apart.
    let odd = with(json!(3), json!([["x", [1]], ["x", [2]], 5, {"bin": "ff"}]));
    let [keys] = odd.extra_keys.as_slice() else { panic!("{odd:?}") };
    assert_eq!(keys.len(), 4);
    assert_ne!(keys[0], keys[1]);
    assert_eq!(keys[3], bytes(&[255]));
    let rendered: Vec<String> = keys.iter().map(ToString::to_string).collect();
    assert_eq!(rendered[3], "ff");
}

#[test]
fn odd_values_in_fields_of_no_weight_cost_only_themselves() {
    let got = one(json!({
        "type": "BlockStored", "block_hashes": [7], "parent_block_hash": -1, "token_ids": [1, 2], "block_size": 2,
        "session_id": 5, "ownership": [1], "locality": {"a": 1}, "kv_cache_spec_sliding_window": "wide",
        "medium": "NVME", "lora_id": {"x": [1, 2]}, "cache_salt": "",
    }));
    assert_eq!(got, BlockStored { tier: Tier::Disk, ..stored(7, Some(u64::MAX), vec![1, 2]) });
    let long = one(json!({
        "type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2], "block_size": 2,
        "session_id": "s".repeat(257), "ownership": "kvcr", "medium": "CPU", "locality": "REMOTE",
    }));
    assert_eq!((long.session, long.owner.as_deref(), long.tier), (None, Some("kvcr"), Tier::Shared));
    // A rank that is none, and copies that do not belong to hashes.
    let mut bytes = Vec::new();
    pack(
        &json!([1, [{"type": "BlockRemoved", "block_hashes": [7], "remaining_copy_counts": [1, 2]}], "east"]),
        &mut bytes,
    );
    let removed = BlockRemoved { block_hashes: vec![7], ..BlockRemoved::default() };
    assert_eq!(decode(&bytes).expect("a batch").batch.events, [KvEvent::Removed(removed)]);
}

/// I-KVW-2: what an identity depends on must be right.
#[test]
fn odd_values_in_fields_of_weight_cost_the_event() {
    let base = json!({
        "type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2], "block_size": 2,
    });
    let odd = [
        ("extra_keys", json!(7)),
        ("cache_salt", json!(7)),
        ("lora_name", json!([7])),
        ("medium", json!(7)),
        ("group_idx", json!("a")),
        ("lookahead_token_ids", json!([[1], [2]])),
        ("block_hashes", json!([1.5])),
        ("block_hashes", json!([null])),
        ("token_ids", json!([[1, 2], 3])),
        ("token_ids", json!([[1, 2, 3], [3, 4, 5]])),
        ("type", json!(null)),
    ];
    let mut batch = vec![base.clone()];
    for (name, value) in &odd {
        let mut event = base.clone();
        event[name] = value.clone();
        batch.push(event);
    }
    batch.push(base);
    let d = events(&Value::Array(batch));
    assert_eq!(d.batch.events.len(), 2);
    assert_eq!(
        d.skipped,
        Skipped { malformed: u32::try_from(odd.len()).expect("few"), ..Skipped::default() }
    );
}

#[test]
fn speculative_pages_keep_the_token_behind_them() {
    // SGLang: pairs; vLLM 0.33: a list per block.
    let pairs = one(json!({
        "type": "BlockStored", "block_hashes": [-7, 8], "token_ids": [[1, 2], [2, 3], [3, 4], [4, 5]],
        "block_size": 2,
    }));
    let lists = one(json!({
        "type": "BlockStored", "block_hashes": [-7, 8], "token_ids": [1, 2, 3, 4], "block_size": 2,
        "lookahead_token_ids": [[3], [5]],
    }));
    assert_eq!(pairs, lists);
    assert_eq!(pairs.lookahead, [[3], [5]]);
    assert_eq!(pairs.block_hashes, [7u64.wrapping_neg(), 8]);
}

#[test]
fn groups_that_skip_blocks_may_have_tokens_without_hashes() {
    let masked = one(json!({
        "type": "BlockStored", "block_hashes": [7], "token_ids": [1, 2, 3, 4], "block_size": 2, "group_idx": 1,
        "kv_cache_spec_kind": "mamba",
    }));
    assert_eq!((masked.kind, masked.group, masked.describes()), (GroupKind::State, 1, false));
    let kinds =
        ["mla_attention", "sink_full_attention", "chunked_local_attention", "cross_attention", "new_kind"];
    let got = kinds.map(|kind| {
        one(json!({
            "type": "BlockStored", "block_hashes": [], "token_ids": [], "block_size": 2, "kv_cache_spec_kind": kind,
        }))
        .kind
    });
    use GroupKind::{Full, Other, Window};
    assert_eq!(got, [Full, Full, Window, Other, Other]);
}
