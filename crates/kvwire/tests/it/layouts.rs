//! Layouts that no capture has: older releases, odd values, frames of the replay.

use std::sync::Arc;

use tandem_kvwire::{
    DecodeError, Decoded, FrameError, Layout, ReplayAnswer, Skipped, decode, encode, message, parse_message,
    parse_replay_answer, parse_replay_request, replay_answer, replay_end, replay_request,
};
use tandem_types::{BlockRemoved, BlockStored, KvBatch, KvEvent, Tier};

fn decoded(hex_text: &str) -> Decoded {
    decode(&hex::decode(hex_text).expect("hex")).expect("a batch")
}

fn stored(hash: u64, parent: Option<u64>, tokens: Vec<u32>) -> BlockStored {
    BlockStored {
        block_hashes: vec![hash],
        parent,
        block_size: u32::try_from(tokens.len()).expect("small"),
        tokens,
        tier: Tier::Device,
        lora: None,
        extra_keys: Vec::new(),
        session: None,
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
    let removed = BlockRemoved { block_hashes: vec![5], tier: Tier::Device };
    assert_eq!(
        d,
        Decoded {
            batch: KvBatch {
                timestamp: 1.5,
                events: vec![KvEvent::Stored(first), KvEvent::Removed(removed), KvEvent::Cleared],
                rank: Some(0),
            },
            groups: vec![Some(0), Some(0), None],
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
    assert_eq!((d.batch.rank, d.groups), (None, vec![None, None]));
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
fn salts_of_both_engines_end_up_in_the_first_block() {
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
    let salted = vec![Some(vec!["tenant-a".to_owned()]), None];
    for (d, first) in [(vllm, 0x33), (sglang, 0xffff_ffff_ffff_ffc3), (array, 0x33)] {
        let [KvEvent::Stored(event)] = d.batch.events.as_slice() else { panic!("one store") };
        assert_eq!(event.block_hashes.first(), Some(&first));
        assert_eq!(event.extra_keys, salted);
    }
}

/// I-KVW-2.
#[test]
fn events_of_no_use_are_counted() {
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
    let mut pairs = plain.clone();
    pairs.tier = Tier::Disk;
    assert_eq!(d.batch.events, [KvEvent::Stored(plain), KvEvent::Stored(pairs)]);
    assert_eq!(d.skipped, Skipped { unknown_type: 0, malformed: 4, placeholder: 1, partial_group: 1 });
    assert_eq!(d.skipped.total(), 6);
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
        events: vec![KvEvent::Removed(BlockRemoved { block_hashes: vec![1], tier })],
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
