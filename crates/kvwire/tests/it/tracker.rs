//! The tracker, case by case.

use std::time::Duration;

use tandem_kvwire::tracker::{TrackerState, TrackerStats};
use tandem_kvwire::{Effect, Loss, Recovery, Tracker, TrackerConfig};
use tandem_types::Time;

type Fx = Vec<Effect<Vec<u8>>>;

const NOW: Time = Time(1);

/// Message `seq` of process `life`.
fn payload(life: u8, seq: u64) -> Vec<u8> {
    [vec![life], seq.to_be_bytes().to_vec()].concat()
}

fn apply(life: u8, seq: u64) -> Effect<Vec<u8>> {
    Effect::Apply { seq, payload: payload(life, seq) }
}

fn applied(life: u8, seqs: std::ops::RangeInclusive<u64>) -> Fx {
    seqs.map(|seq| apply(life, seq)).collect()
}

fn replay(attempt: u64, from: u64, missing: u64) -> Effect<Vec<u8>> {
    Effect::Replay { attempt, from, missing }
}

struct Rig(Tracker<Vec<u8>>);

impl Rig {
    fn new(config: TrackerConfig) -> Self {
        Self(Tracker::new(config))
    }

    /// At the live edge: 0 to 10 of process 1 were applied.
    fn at_ten(config: TrackerConfig) -> Self {
        let mut rig = Self::new(config);
        for seq in 0..=10 {
            assert_eq!(rig.live(1, seq), [apply(1, seq)]);
        }
        rig
    }

    fn live(&mut self, life: u8, seq: u64) -> Fx {
        let mut fx = Vec::new();
        self.0.live(NOW, seq, payload(life, seq), &mut fx);
        fx
    }

    fn replayed(&mut self, attempt: u64, life: u8, seqs: std::ops::RangeInclusive<u64>) -> Fx {
        let mut fx = Vec::new();
        for seq in seqs {
            self.0.replayed(NOW, attempt, seq, payload(life, seq), &mut fx);
        }
        fx
    }

    fn end(&mut self, attempt: u64) -> Fx {
        let mut fx = Vec::new();
        self.0.replay_ended(NOW, attempt, &mut fx);
        fx
    }

    fn fail(&mut self, attempt: u64) -> Fx {
        let mut fx = Vec::new();
        self.0.replay_failed(NOW, attempt, &mut fx);
        fx
    }

    fn connected(&mut self) -> Fx {
        let mut fx = Vec::new();
        self.0.connected(NOW, &mut fx);
        fx
    }
}

const REPLAYS: TrackerConfig = TrackerConfig::engine(true);
const NO_REPLAY: TrackerConfig = TrackerConfig::engine(false);

#[test]
fn a_gap_is_filled_by_the_replay() {
    let mut rig = Rig::at_ten(REPLAYS);
    // 11 to 13 are lost. 10 is asked for too: it proves that the process is the same.
    assert_eq!(rig.live(1, 14), [replay(1, 10, 11)]);
    assert_eq!(rig.0.state(), TrackerState::CatchingUp);
    assert_eq!(rig.live(1, 15), []);
    assert_eq!(rig.replayed(1, 1, 10..=14), applied(1, 11..=14));
    assert_eq!(rig.end(1), [apply(1, 15)]);
    assert_eq!((rig.0.state(), rig.0.whole(), rig.0.held()), (TrackerState::Live, true, 0));
    assert_eq!(rig.live(1, 16), [apply(1, 16)]);
    let stats = rig.0.stats();
    assert_eq!((stats.applied, stats.replays, stats.lost, stats.gaps), (17, 1, 0, 0));
}

#[test]
fn a_replay_that_does_not_reach_back_clears() {
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(1, 61);
    let mut expected = vec![Effect::Clear(Loss::Gap { missing: 11, resumed: 60 })];
    expected.extend(applied(1, 60..=61));
    assert_eq!(rig.replayed(1, 1, 60..=61), expected);
    assert_eq!(rig.end(1), []);
    assert!(!rig.0.whole());
    assert_eq!(rig.0.stats().lost, 49);
    // One that begins exactly with what is missing is enough.
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(1, 13);
    assert_eq!(rig.replayed(1, 1, 11..=13), applied(1, 11..=13));
}

#[test]
fn a_hole_in_the_replay_is_asked_for_again_while_it_gets_on() {
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(1, 30);
    assert_eq!(rig.replayed(1, 1, 10..=15), applied(1, 11..=15));
    assert_eq!(rig.replayed(1, 1, 20..=22), []);
    assert_eq!(rig.end(1), [replay(2, 15, 16)]);
    assert_eq!(rig.replayed(2, 1, 15..=16), [apply(1, 16)]);
    assert_eq!(rig.end(2), [replay(3, 16, 17)]);
    // Answers of replays that are over change nothing.
    assert_eq!(rig.replayed(2, 1, 17..=19), []);
    assert_eq!(rig.end(2), []);
    // It has only what it said before: 17 to 19 are gone. Of what follows, 23 to 29 are still to be had.
    assert_eq!(rig.replayed(3, 1, 16..=16), []);
    let mut expected = vec![Effect::Clear(Loss::Gap { missing: 17, resumed: 20 })];
    expected.extend(applied(1, 20..=22));
    expected.push(replay(4, 22, 23));
    assert_eq!(rig.end(3), expected);
    assert_eq!(rig.replayed(4, 1, 22..=30), applied(1, 23..=30));
    assert_eq!(rig.end(4), []);
    assert_eq!(rig.0.stats().stale_answers, 4);
}

#[test]
fn without_replay_a_gap_clears_or_reconciles() {
    let mut rig = Rig::at_ten(NO_REPLAY);
    let loss = Loss::Gap { missing: 11, resumed: 13 };
    assert_eq!(rig.live(1, 13), [Effect::Clear(loss), apply(1, 13)]);
    let mut rig = Rig::new(TrackerConfig::mooncake());
    assert_eq!(rig.live(1, 1), [apply(1, 1)]);
    assert!(rig.0.whole());
    let loss = Loss::Gap { missing: 2, resumed: 4 };
    assert_eq!(rig.live(1, 4), [Effect::Reconcile(loss), apply(1, 4)]);
    assert_eq!(rig.live(2, 1), [Effect::Reconcile(Loss::Restart), apply(2, 1)]);
    assert!(rig.0.whole());
}

#[test]
fn a_sequence_that_falls_is_a_restart() {
    let mut rig = Rig::at_ten(REPLAYS);
    assert_eq!(rig.live(2, 0), [Effect::Clear(Loss::Restart), apply(2, 0)]);
    assert_eq!(rig.live(2, 1), [apply(2, 1)]);
    // The first messages of the third process were missed.
    assert_eq!(rig.live(3, 1), [Effect::Clear(Loss::Restart), replay(1, 0, 0)]);
    assert_eq!(rig.replayed(1, 3, 0..=1), applied(3, 0..=1));
    assert_eq!(rig.end(1), []);
    // Without replay it begins where it is heard.
    let mut rig = Rig::at_ten(NO_REPLAY);
    assert_eq!(rig.live(2, 4), [Effect::Clear(Loss::Restart), apply(2, 4)]);
    assert!(!rig.0.whole());
    assert_eq!(rig.0.stats().restarts, 1);
}

#[test]
fn a_repeated_message_is_not_a_restart() {
    let mut rig = Rig::at_ten(NO_REPLAY);
    assert_eq!(rig.live(1, 10), []);
    assert_eq!(rig.live(1, 4), []);
    assert_eq!(rig.0.stats().duplicates, 2);
    assert_eq!(rig.live(1, 11), [apply(1, 11)]);
    // Repeated beyond what is remembered, it cannot be told from one.
    for seq in 12..=100 {
        rig.live(1, seq);
    }
    assert_eq!(rig.live(1, 4)[0], Effect::Clear(Loss::Restart));
}

/// I-TRK-3: a restart while nothing was heard.
#[test]
fn a_restart_is_seen_by_what_the_replay_holds() {
    // The next process is beyond our number: its message 10 is not ours.
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(2, 14);
    let seen = rig.replayed(1, 2, 10..=10);
    assert_eq!(seen, [Effect::Clear(Loss::Restart), replay(2, 0, 0)]);
    assert_eq!(rig.replayed(1, 2, 11..=14), [], "the rest of the old answer");
    assert_eq!(rig.replayed(2, 2, 0..=14), applied(2, 0..=14));
    assert_eq!(rig.end(2), []);
    // It is not there yet: it does not have 10 at all.
    let mut rig = Rig::at_ten(REPLAYS);
    assert_eq!(rig.connected(), [replay(1, 10, 11)]);
    assert_eq!(rig.end(1), [Effect::Clear(Loss::Restart), replay(2, 0, 0)]);
    assert_eq!(rig.replayed(2, 2, 0..=3), applied(2, 0..=3));
    assert_eq!(rig.end(2), []);
    // It says a number that is held back, with other content.
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(1, 14);
    assert_eq!(rig.live(2, 14), [Effect::Clear(Loss::Restart), replay(2, 0, 0)]);
}

#[test]
fn a_reconnection_that_lost_nothing_costs_nothing() {
    let mut rig = Rig::at_ten(REPLAYS);
    rig.0.disconnected();
    assert_eq!(rig.connected(), [replay(1, 10, 11)]);
    assert_eq!(rig.live(1, 11), [], "waits for the answer");
    assert_eq!(rig.replayed(1, 1, 10..=11), [apply(1, 11)]);
    assert_eq!(rig.end(1), []);
    assert!(rig.0.whole());
    assert_eq!(Rig::at_ten(NO_REPLAY).connected(), []);
}

/// I-TRK-3.
#[test]
fn what_waited_across_a_reconnection_is_not_trusted() {
    let mut rig = Rig::new(REPLAYS);
    assert_eq!(rig.connected(), [replay(1, 0, 0)]);
    assert_eq!(rig.live(1, 0), []);
    // Another process, which has said nothing yet, and then 0, which is lost.
    assert_eq!(rig.connected(), [replay(2, 0, 0)]);
    assert_eq!(rig.end(2), []);
    assert_eq!(rig.live(2, 1), [replay(3, 0, 0)]);
    assert_eq!(rig.replayed(3, 2, 0..=1), applied(2, 0..=1));
}

#[test]
fn joining_late_asks_for_the_history() {
    // On connecting, before anything is heard.
    let mut rig = Rig::new(REPLAYS);
    assert_eq!(rig.0.state(), TrackerState::Silent);
    assert_eq!(rig.connected(), [replay(1, 0, 0)]);
    assert_eq!(rig.0.state(), TrackerState::Joining);
    assert_eq!(rig.live(1, 7), []);
    assert_eq!(rig.replayed(1, 1, 0..=7), applied(1, 0..=7));
    assert_eq!(rig.end(1), []);
    assert!(rig.0.whole());
    // The buffer begins later: deep blocks without roots, and nothing to clear.
    let mut rig = Rig::new(REPLAYS);
    assert_eq!(rig.live(1, 7), [replay(1, 0, 0)]);
    assert_eq!(rig.replayed(1, 1, 5..=7), applied(1, 5..=7));
    assert_eq!(rig.end(1), []);
    assert!(!rig.0.whole());
    // There is no history to be had.
    let mut rig = Rig::new(REPLAYS);
    rig.live(1, 7);
    assert_eq!(rig.end(1), [apply(1, 7)]);
    assert_eq!((rig.0.whole(), rig.0.next_seq()), (false, Some(8)));
    // It is not wanted, or there is no socket.
    for config in [TrackerConfig { replay_on_join: false, ..REPLAYS }, NO_REPLAY] {
        let mut rig = Rig::new(config);
        assert_eq!(rig.connected(), []);
        assert_eq!(rig.live(1, 7), [apply(1, 7)]);
    }
}

#[test]
fn a_replay_that_fails_is_tried_again_and_given_up() {
    let mut rig = Rig::at_ten(REPLAYS);
    rig.live(1, 14);
    assert_eq!(rig.fail(1), [replay(2, 10, 11)]);
    assert_eq!(rig.fail(1), [], "the old one");
    assert_eq!(rig.fail(2), [replay(3, 10, 11)]);
    let loss = Loss::Gap { missing: 11, resumed: 14 };
    assert_eq!(rig.fail(3), [Effect::Clear(loss), apply(1, 14)]);
    assert_eq!(rig.0.state(), TrackerState::Live);
    // Progress starts the count anew.
    rig.live(1, 17);
    rig.fail(4);
    assert_eq!(rig.replayed(5, 1, 14..=15), [apply(1, 15)]);
    assert_eq!(rig.fail(5), [replay(6, 15, 16)]);
    assert_eq!(rig.fail(6), [replay(7, 15, 16)]);
}

/// I-TRK-4.
#[test]
fn silence_times_out_and_answers_put_it_off() {
    let mut rig = Rig::at_ten(REPLAYS);
    let second = |n: u64| Time(1) + Duration::from_secs(n);
    assert_eq!(rig.0.next_deadline(), None);
    rig.live(1, 14);
    assert_eq!(rig.0.next_deadline(), Some(second(5)));
    let mut fx = Vec::new();
    rig.0.handle_timeout(second(4), &mut fx);
    assert_eq!(fx, []);
    rig.0.replayed(second(4), 1, 11, payload(1, 11), &mut fx);
    assert_eq!(rig.0.next_deadline(), Some(second(9)));
    fx.clear();
    rig.0.handle_timeout(second(9), &mut fx);
    assert_eq!(fx, [replay(2, 11, 12)]);
}

/// I-TRK-4.
#[test]
fn what_is_held_back_is_bounded() {
    let by_count = TrackerConfig { held_messages_max: 3, ..REPLAYS };
    let by_size = TrackerConfig { held_bytes_max: 3 * 9, ..REPLAYS };
    for config in [by_count, by_size] {
        let mut rig = Rig::at_ten(config);
        assert_eq!(rig.live(1, 14), [replay(1, 10, 11)]);
        assert_eq!([rig.live(1, 15), rig.live(1, 17)], [vec![], vec![]]);
        assert_eq!(rig.live(1, 15), [], "the same again takes no room");
        let loss = Loss::Gap { missing: 11, resumed: 14 };
        let given_up = [Effect::Clear(loss), apply(1, 14), apply(1, 15), replay(2, 15, 16)];
        assert_eq!(rig.live(1, 18), given_up);
        assert_eq!(rig.0.held(), 2);
        assert_eq!(rig.replayed(2, 1, 15..=18), applied(1, 16..=18));
        assert_eq!(rig.end(2), []);
        assert_eq!(rig.0.held(), 0);
    }
}

/// I-TRK-4.
#[test]
fn what_is_held_back_twice_takes_room_once() {
    let mut rig = Rig::at_ten(TrackerConfig { held_bytes_max: 3 * 9, ..REPLAYS });
    rig.live(1, 14);
    rig.live(1, 15);
    // The answer has a hole before what is held back already.
    assert_eq!(rig.replayed(1, 1, 10..=11), [apply(1, 11)]);
    assert_eq!(rig.replayed(1, 1, 14..=15), []);
    assert_eq!(rig.0.held(), 2);
    assert_eq!(rig.end(1), [replay(2, 11, 12)]);
    assert_eq!(rig.replayed(2, 1, 11..=15), applied(1, 12..=15));
    assert_eq!(rig.end(2), []);
}

#[test]
fn defaults_name_their_bounds() {
    let rig = Rig::new(TrackerConfig::mooncake());
    assert_eq!(rig.0.stats(), TrackerStats::default());
    assert_eq!(TrackerConfig::mooncake().recovery, Recovery::Reconcile);
    assert_eq!(TrackerConfig::mooncake().first_seq, 1);
}
