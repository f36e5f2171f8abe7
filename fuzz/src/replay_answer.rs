//! Frames of replays and the tracker behind them: any frames are read without a panic, and whatever comes in
//! whatever order, messages are applied one after the other, with a clearing before each hole.

use std::time::Duration;

use tandem_kvwire::{
    Effect, ReplayAnswer, Tracker, TrackerConfig, parse_message, parse_replay_answer, parse_replay_request,
};
use tandem_types::Time;

const HELD_MAX: usize = 8;

/// The data is a script of steps of two bytes; what is left over at a 0xff is a list of frames.
pub fn check(data: &[u8]) {
    let (script, frames) = data.split_at(data.iter().position(|&byte| byte == 0xff).unwrap_or(data.len()));
    frames_are_read(frames);
    for replay in [false, true] {
        follow(script, replay);
    }
}

/// Frames begin with their length.
fn frames_are_read(mut data: &[u8]) {
    let mut frames = Vec::new();
    while let [len, rest @ ..] = data {
        let len = usize::from(*len % 12).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        frames.push(frame);
        data = rest;
    }
    let _ = parse_message(&frames);
    let _ = parse_replay_request(&frames);
    let Ok(answer) = parse_replay_answer(&frames) else { return };
    // A topic frame more or less in front changes nothing.
    for shorter in 2..=frames.len() {
        assert_eq!(parse_replay_answer(&frames[frames.len() - shorter..]), Ok(answer));
    }
    if let ReplayAnswer::Batch { payload, .. } = answer {
        assert_eq!(frames.last(), Some(&payload));
    }
}

fn follow(script: &[u8], replay: bool) {
    let config = TrackerConfig { held_messages_max: HELD_MAX, ..TrackerConfig::engine(replay) };
    let mut tracker: Tracker<Vec<u8>> = Tracker::new(config);
    let mut now = Time::ZERO;
    let mut asked = 0;
    let mut last: Option<u64> = None;
    for step in script.chunks_exact(2) {
        let [what, seq] = *step else { continue };
        let life = what >> 6;
        let seq = u64::from(seq % 32);
        let payload = vec![life, seq as u8];
        let mut effects = Vec::new();
        match what % 8 {
            0..=2 => tracker.live(now, seq, payload, &mut effects),
            3 | 4 => tracker.replayed(now, asked, seq, payload, &mut effects),
            5 => tracker.replay_ended(now, asked, &mut effects),
            6 => {
                now = now + Duration::from_secs(seq);
                tracker.handle_timeout(now, &mut effects);
            }
            _ if life == 0 => tracker.disconnected(),
            _ => tracker.connected(now, &mut effects),
        }
        for effect in effects {
            match effect {
                Effect::Apply { seq, payload } => {
                    assert_eq!(payload.get(1).copied().map(u64::from), Some(seq));
                    assert!(last.is_none_or(|last| last + 1 == seq), "{last:?}, then {seq}");
                    last = Some(seq);
                }
                Effect::Clear(_) => last = None,
                Effect::Replay { attempt, from, missing } => {
                    assert!(replay && attempt > asked && from <= missing && missing - from <= 1);
                    asked = attempt;
                }
                Effect::Reconcile(loss) => panic!("{loss:?}"),
            }
        }
        assert!(tracker.held() <= HELD_MAX);
        assert!(replay || tracker.held() == 0);
        assert_eq!(tracker.next_seq(), last.map(|last| last + 1));
    }
}
