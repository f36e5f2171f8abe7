//! Each format read from rows as its writers write them; expectations worked out by hand.

#![expect(clippy::expect_used, reason = "a helper that fails is a failed test")]

use std::time::Duration;

use tandem_workload::{
    Dep, Format, ImportError, ImportOptions, NodeNo, Repair, SessionNo, Trigger, Workload, import, mix, sniff,
};

fn read(text: &str) -> Workload {
    let format = sniff(text.as_bytes()).expect("a known format");
    import(text.as_bytes(), format, &ImportOptions::default()).expect("a workload")
}

fn strict(text: &str) -> Result<Workload, ImportError> {
    let format = sniff(text.as_bytes()).expect("a known format");
    import(text.as_bytes(), format, &ImportOptions { strict: true, ..ImportOptions::default() })
}

fn after(on: u32, seconds: f64) -> Vec<Dep> {
    vec![Dep { on: NodeNo(on), trigger: Trigger::Completion, delay: Duration::from_secs_f64(seconds) }]
}

fn prompts(workload: &Workload, session: u32, block_size: u32) -> Vec<Vec<u64>> {
    let mut prompts = workload.prompts(SessionNo(session));
    std::iter::from_fn(|| prompts.advance(block_size).map(|ids| ids.to_vec())).collect()
}

// I-WKL-3: the pause after a join counts from the child's end, and p2 waits for both.
const JOIN: &str = r#"{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1789000010000,"event_source":"dynamo","agent_context":{"session_id":"P"},"request":{"request_id":"p1","model":"tiny","input_tokens":128,"output_tokens":10,"request_received_ms":1789000000000,"total_time_ms":10000.0,"replay":{"trace_block_size":64,"input_length":128,"input_sequence_hashes":[11,12]}}}
{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1789000158551,"event_source":"dynamo","agent_context":{"session_id":"P:child","parent_session_id":"P"},"request":{"request_id":"c1","model":"tiny","input_tokens":128,"output_tokens":10,"request_received_ms":1789000012000,"total_time_ms":146551.0,"replay":{"trace_block_size":64,"input_length":128,"input_sequence_hashes":[91,92]}}}
{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1789000344981,"event_source":"dynamo","agent_context":{"session_id":"P"},"request":{"request_id":"p2","model":"tiny","input_tokens":256,"output_tokens":10,"request_received_ms":1789000339981,"total_time_ms":5000.0,"replay":{"trace_block_size":64,"input_length":256,"input_sequence_hashes":[11,12,13,14]}}}
"#;

// I-WKL-2: p1 and p2 stand together although c1 came between them.
#[test]
fn a_dynamo_trace_keeps_the_pause_behind_a_join() {
    assert_eq!(sniff(JOIN.as_bytes()), Ok(Format::Dynamo));
    let workload = strict(JOIN).expect("clean");
    assert!(workload.repairs.is_clean());
    let ids: Vec<&str> = workload.nodes.iter().filter_map(|node| node.id.as_deref()).collect();
    assert_eq!(ids, ["p1", "p2", "c1"], "session by session");
    assert_eq!(workload.nodes[2].deps, after(0, 2.0), "2 s after p1's end");
    let p2 = &workload.nodes[1];
    assert_eq!(p2.deps.len(), 2);
    assert_eq!(p2.deps[0], Dep { delay: Duration::ZERO, ..after(0, 0.0)[0] });
    assert_eq!(p2.deps[1], Dep { on: NodeNo(2), ..after(0, 181.43)[0] });
    assert_eq!(workload.plays.len(), 1);
    assert_eq!(workload.sessions[1].parent, Some(SessionNo(0)));
    assert_eq!(prompts(&workload, 0, 64), [vec![11, 12], vec![11, 12, 13, 14]]);
}

#[test]
fn mooncake_rows_are_sessions_of_one_turn_at_their_times() {
    let text = "{\"timestamp\": 500, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 2353]}\n\
                {\"timestamp\": 2500, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [46]}\n";
    let workload = read(text);
    assert_eq!((workload.block_size, workload.plays.len()), (512, 2));
    assert_eq!(workload.plays[1].starts, Duration::from_secs(2), "times count from the first row");
    assert!(workload.nodes.iter().all(|node| node.deps.is_empty() && node.not_before == Duration::ZERO));
    let first = prompts(&workload, 0, 512);
    assert_eq!(first[0].len(), 2, "a partial block is no block of 512");
    assert_eq!(first[0][0], prompts(&workload, 1, 512)[0][0]);
    // Blocks of 64: 17 whole ones in 1,100 tokens, the last of them inside the partial block.
    let fine = prompts(&workload, 0, 64);
    assert_eq!(fine[0].len(), 17);
    assert_eq!(fine[0][7], first[0][0], "the eighth ends where the first block of 512 does");
    assert_eq!(fine[0][..8], prompts(&workload, 1, 64)[0][..]);
}

#[test]
fn mooncake_sessions_wait_for_their_turn_before() {
    let text = r#"{"session_id":"a","timestamp":0,"input_length":64,"output_length":64,"hash_ids":[1]}
{"session_id":"a","timestamp":2000,"input_length":192,"output_length":5,"hash_ids":[1,2,3]}
{"session_id":"a","delay":250,"timestamp":9000,"input_length":256,"output_length":5,"hash_ids":[1,2,3,4]}
"#;
    let workload = read(text);
    assert_eq!(workload.nodes[1].deps, after(0, 2.0));
    assert_eq!(workload.nodes[2].deps, after(1, 0.25), "a stated delay wins");
    // The answer's block is what the next prompt has there.
    let all = prompts(&workload, 0, 64);
    assert_eq!(all[0], all[1][..2]);
    assert_eq!(all[2][..3], all[1][..]);
}

#[test]
fn delta_rows_grow_by_the_answer_and_what_is_new() {
    let text = r#"{"session_id":"a","input_length":130,"output_length":30,"hash_ids":[0,1,200],"timestamp":0.0,"group_id":46}
{"session_id":"a","input_length":40,"output_length":10,"hash_ids":[201],"delay":12190.1}
{"session_id":"a","input_length":10,"output_length":10,"hash_ids":[202],"delay":1}
"#;
    assert_eq!(sniff(text.as_bytes()), Ok(Format::MooncakeDelta));
    let workload = read(text);
    let inputs: Vec<u32> = workload.nodes.iter().map(|node| node.input_tokens).collect();
    assert_eq!(inputs, [130, 200, 220]);
    let all = prompts(&workload, 0, 64);
    assert_eq!(all[1][..2], [mix(0, 0), mix(0, 1)]);
    assert_eq!(all[2][..3], all[1][..3]);
    assert_eq!(workload.sessions[0].group.as_deref(), Some("46"));
}

#[test]
fn agentic_rows_wait_for_what_they_say() {
    let v2 = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":64,"hash_id_scope":"local","source":{"format":"x","digest":"y"}}
{"request_id":"r1","play_id":"p","session_id":"s","model":"m","input_length":64,"output_length":3,"hash_ids":[1],"not_before_ms":100,"dependencies":[]}
{"request_id":"r2","play_id":"p","session_id":"s","model":"m","input_length":128,"output_length":3,"hash_ids":[1,2],"dependencies":[{"request_id":"r1","trigger":"dispatch","delay_ms":1500,"relation":"spawn"}]}
{"request_id":"q1","play_id":"q","session_id":"s","model":"m","input_length":64,"output_length":3,"hash_ids":[1],"not_before_ms":0,"dependencies":[]}
"#;
    let workload = strict(v2).expect("clean");
    let deps = &workload.nodes[1].deps;
    assert_eq!((deps[0].trigger, deps[0].delay), (Trigger::Dispatch, Duration::from_millis(1500)));
    assert_eq!(
        (workload.sessions.len(), workload.plays.len()),
        (2, 2),
        "ids of two plays are not one session"
    );
    assert_ne!(prompts(&workload, 0, 64)[0], prompts(&workload, 1, 64)[0], "nor do they share blocks");

    let older = r#"{"request_id":1,"session_id":"s","input_length":64,"output_length":3,"hash_ids":[1],"timestamp":0,"wait_for":[]}
{"request_id":2,"session_id":"t","input_length":64,"output_length":3,"hash_ids":[1],"wait_for":[1],"delay":10,"tool_wait_ms":500}
{"request_id":3,"session_id":"t","input_length":64,"output_length":3,"hash_ids":[1],"wait_for":[77]}
"#;
    let workload = read(older);
    assert_eq!(workload.nodes[1].deps, after(0, 0.51));
    assert_eq!(workload.repairs.count(Repair::UnknownDependency), 1);
    assert!(matches!(strict(older), Err(ImportError::Strict { repair: Repair::UnknownDependency, .. })));

    // I-WKL-2: what waits in a circle is refused.
    let circle = r#"{"request_id":1,"session_id":"s","input_length":64,"output_length":3,"hash_ids":[1],"wait_for":[2]}
{"request_id":2,"session_id":"t","input_length":64,"output_length":3,"hash_ids":[1],"wait_for":[1]}
"#;
    let options = ImportOptions::default();
    let error = import(circle.as_bytes(), Format::AgenticMooncake, &options).expect_err("a circle");
    assert!(matches!(error, ImportError::Circle(_)));
    let newer = v2.replace("\"version\":2", "\"version\":3");
    assert!(matches!(
        import(newer.as_bytes(), Format::AgenticMooncake, &options),
        Err(ImportError::Header(_))
    ));
}

fn weka(nested: [f64; 2], second: f64, status: &str) -> String {
    format!(
        r#"{{"id":"w","models":["big"],"block_size":64,"hash_id_scope":"local","tool_tokens":64,"system_tokens":70,"requests":[
        {{"t":0.0,"type":"n","model":"big","in":200,"out":60,"hash_ids":[1,2,3],"stop":"tool_use","api_time":4.0}},
        {{"t":10.0,"type":"subagent","agent_id":"x","status":"{status}","models":["small"],"tool_tokens":0,"system_tokens":0,"requests":[
            {{"t":{},"type":"n","model":"small","in":64,"out":5,"hash_ids":[1],"stop":"tool_use","api_time":1.0}},
            {{"t":{},"type":"n","model":"small","in":128,"out":5,"hash_ids":[1,2],"stop":"end_turn","api_time":2.0}}]}},
        {{"t":{second},"type":"n","model":"big","in":320,"out":5,"hash_ids":[1,2,3,4,5],"stop":"end_turn","api_time":1.0}}]}}"#,
        nested[0], nested[1]
    )
    .replace('\n', "")
}

#[test]
fn weka_sessions_spawn_and_join_subagents_in_both_time_conventions() {
    for text in [weka([0.5, 6.0], 30.0, "completed"), weka([10.5, 16.0], 30.0, "completed")] {
        assert_eq!(sniff(text.as_bytes()), Ok(Format::Weka));
        let workload = read(&text);
        assert_eq!(
            workload.nodes[2].deps,
            after(0, 6.5),
            "the child begins at 10.5, 6.5 s after the first answer"
        );
        assert_eq!(workload.nodes[3].deps, after(2, 4.5));
        let join = &workload.nodes[1].deps;
        assert_eq!(join[0], Dep { delay: Duration::ZERO, ..after(0, 0.0)[0] });
        assert_eq!(join[1], Dep { on: NodeNo(3), ..after(0, 12.0)[0] }, "the child ended at 18");
        assert!(workload.nodes[0].tools && !workload.nodes[1].tools);
    }
    let background = read(&weka([0.5, 6.0], 30.0, "async_launched"));
    assert_eq!(background.nodes[1].deps, after(0, 26.0), "nobody waits for it");
    let overlapping = weka([0.5, 6.0], 2.0, "async_launched");
    assert_eq!(read(&overlapping).repairs.count(Repair::NegativePause), 1);
    assert!(strict(&overlapping).is_err());
}

// I-WKL-4.
#[test]
fn weka_ids_are_local_but_for_equal_heads() {
    let one = weka([0.5, 6.0], 30.0, "completed");
    let text = format!("{one}\n{}", one.replace("\"id\":\"w\"", "\"id\":\"v\""));
    let workload = read(&text);
    let (w, v) = (prompts(&workload, 0, 64), prompts(&workload, 2, 64));
    // 134 tokens of tools and system prompt are two whole blocks.
    assert_eq!(w[0][..2], v[0][..2]);
    assert_ne!(w[0][2], v[0][2]);
    let options = ImportOptions { share_heads: false, ..ImportOptions::default() };
    let apart = import(text.as_bytes(), Format::Weka, &options).expect("a workload");
    assert_ne!(prompts(&apart, 0, 64)[0][0], prompts(&apart, 2, 64)[0][0]);
    // 200 tokens and an answer of 60 fill four blocks, the last of which the next prompt names.
    assert_eq!(w[0], w[1][..4]);
}

#[test]
fn applied_compute_rows_are_chains_with_tool_pauses() {
    let text = r#"{"num_turns":2,"input_prompt_length":100,"assistant_response_length":[20,30],"tool_call_output_length":[40,50],"tool_call_latency":[0.5,2.0],"final_assistant_response_length":7}"#;
    let workload = read(text);
    let lengths: Vec<(u32, u32)> = workload.nodes.iter().map(|n| (n.input_tokens, n.output_tokens)).collect();
    assert_eq!(lengths, [(100, 20), (160, 30), (240, 7)]);
    assert_eq!(workload.nodes[2].deps, after(1, 2.0));
    assert_eq!(workload.nodes.iter().map(|n| n.tools).collect::<Vec<_>>(), [true, true, false]);
    let all = prompts(&workload, 0, 16);
    assert_eq!(all[0].len(), 7, "120 tokens of prompt and answer");
    assert_eq!(all[2][..all[1].len()], all[1][..]);
    let short = text.replace("[0.5,2.0]", "[0.5]");
    assert_eq!(read(&short).repairs.count(Repair::ShortList), 1);
}

#[test]
fn bailian_chats_follow_their_parents() {
    let text = r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":10.0,"input_length":20,"output_length":4,"type":"text","turn":1,"hash_ids":[1,2]}
{"chat_id":2,"parent_chat_id":1,"timestamp":15.5,"input_length":40,"output_length":4,"type":"text","turn":2,"hash_ids":[1,5,6]}
{"chat_id":3,"parent_chat_id":1,"timestamp":17.0,"input_length":40,"output_length":4,"type":"text","turn":2,"hash_ids":[1,5,7]}
{"chat_id":4,"parent_chat_id":99,"timestamp":18.0,"input_length":20,"output_length":4,"type":"text","turn":3,"hash_ids":[8,9]}
"#;
    let workload = read(text);
    assert_eq!(workload.sessions.len(), 3);
    assert_eq!(workload.nodes[1].deps, after(0, 5.5));
    assert_eq!(workload.nodes[2].deps, after(0, 7.0), "a second branch from the same chat");
    assert_eq!(workload.repairs.count(Repair::UnknownDependency), 1);
    assert_eq!(workload.plays[1].starts, Duration::from_secs(8));
}

#[test]
fn atif_steps_give_lengths_and_pauses() {
    let text = r#"{"schema_version":"ATIF-v1.8","session_id":"run","agent":{"name":"a","version":"1"},"steps":[
      {"step_id":1,"source":"user","timestamp":"2026-01-01T00:00:00Z","message":"x"},
      {"step_id":2,"source":"agent","timestamp":"2026-01-01T00:00:04Z","message":"","tool_calls":[{"tool_call_id":"1","function_name":"f","arguments":{}}],"metrics":{"prompt_tokens":100,"completion_tokens":20}},
      {"step_id":3,"source":"system","timestamp":"2026-01-01T00:00:09Z","message":"x"},
      {"step_id":4,"source":"agent","timestamp":"2026-01-01T00:00:10.5Z","message":"","metrics":{"prompt_tokens":150,"completion_tokens":5}},
      {"step_id":5,"source":"agent","timestamp":"2026-01-01T00:00:12Z","message":"","metrics":{"prompt_tokens":60,"completion_tokens":5}}]}"#;
    let workload = read(text);
    let lengths: Vec<u32> = workload.nodes.iter().map(|node| node.input_tokens).collect();
    assert_eq!(lengths, [100, 150, 60]);
    assert_eq!(workload.nodes[1].deps, after(0, 5.0), "from 4 s to 9 s the tool ran");
    assert_eq!(workload.nodes[0].recorded, Some(Duration::from_secs(4)));
    let all = prompts(&workload, 0, 16);
    assert_eq!(all[1][..6], all[0][..6]);
    assert_ne!(all[2][0], all[1][0], "a shorter prompt begins anew");
}

#[test]
fn odd_rows_are_counted_and_strict_import_names_the_first() {
    let good = r#"{"timestamp":0,"input_length":64,"output_length":0,"hash_ids":[1,2,3]}"#;
    let text = format!(
        "{good}\nnot json\n{{\"timestamp\":1,\"input_length\":0,\"output_length\":1,\"hash_ids\":[]}}\n"
    );
    let options = ImportOptions { block_size: Some(64), ..ImportOptions::default() };
    let workload = import(text.as_bytes(), Format::Mooncake, &options).expect("a workload");
    let counts: Vec<(Repair, u64)> =
        workload.repairs.iter().map(|(repair, count, _)| (repair, count)).collect();
    assert_eq!(
        counts,
        [(Repair::BadRow, 1), (Repair::SurplusIds, 1), (Repair::EmptyOutput, 1), (Repair::EmptyPrompt, 1)]
    );
    let strict = ImportOptions { strict: true, ..options };
    let error = import(text.as_bytes(), Format::Mooncake, &strict).expect_err("a bad row");
    assert!(
        matches!(&error, ImportError::Strict { repair: Repair::BadRow, place } if place.starts_with("line 2")),
        "{error}"
    );
    assert_eq!(import(b"", Format::Mooncake, &ImportOptions::default()), Err(ImportError::Empty));
    assert_eq!(sniff(b"{\"a\":1}\n"), Err(ImportError::Unknown));
}

#[test]
fn gzip_files_of_several_members_are_one_file() {
    use std::io::Write;
    let mut bytes = Vec::new();
    for row in JOIN.lines() {
        let mut member = flate2::write::GzEncoder::new(&mut bytes, flate2::Compression::fast());
        writeln!(member, "{row}").expect("written");
        member.finish().expect("finished");
    }
    assert_eq!(sniff(&bytes), Ok(Format::Dynamo));
    let workload = import(&bytes, Format::Dynamo, &ImportOptions::default()).expect("a workload");
    assert_eq!(workload.nodes.len(), 3);
    bytes.truncate(bytes.len() - 9);
    assert!(matches!(import(&bytes, Format::Dynamo, &ImportOptions::default()), Err(ImportError::Gzip(_))));
}

#[test]
fn long_pauses_can_be_capped() {
    let mut workload = read(JOIN);
    workload.cap_gaps(Duration::from_secs(10));
    assert_eq!(workload.nodes[1].deps[1].delay, Duration::from_secs(10));
    assert_eq!(workload.nodes[2].deps[0].delay, Duration::from_secs(2));
}
