//! The tracker against a publisher that loses, repeats, reorders, restarts and forgets.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use tandem_kvwire::{Effect, Tracker, TrackerConfig};
use tandem_types::Time;

/// (process, sequence number).
type Message = (u8, u64);

fn bytes((life, seq): Message) -> Vec<u8> {
    [vec![life], seq.to_be_bytes().to_vec()].concat()
}

fn message(bytes: &[u8]) -> Message {
    let (life, seq) = bytes.split_first().expect("not empty");
    (*life, u64::from_be_bytes(seq.try_into().expect("eight bytes")))
}

#[derive(Debug, Clone)]
enum Step {
    /// Publishes so many messages, of which those marked are lost, repeated, or come after the next one.
    Publish(Vec<Fate>),
    /// Another process takes over, which the subscriber's socket notices.
    Restart,
    /// The subscriber's connection breaks and comes back.
    Reconnect,
    /// Replays that are under way are answered up to here, or (false) fail.
    Answer(bool),
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    Late,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fate = prop_oneof![
        8 => Just(Fate::Arrives),
        3 => Just(Fate::Lost),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Late),
    ];
    let step = prop_oneof![
        8 => prop::collection::vec(fate, 1..12).prop_map(Step::Publish),
        1 => Just(Step::Restart),
        1 => Just(Step::Reconnect),
        6 => any::<bool>().prop_map(Step::Answer),
    ];
    prop::collection::vec(step, 1..40)
}

struct World {
    tracker: Tracker<Vec<u8>>,
    now: Time,
    life: u8,
    published: u64,
    /// Messages that the publisher can replay.
    buffer: u64,
    asked: VecDeque<(u64, u64)>,
    /// What the subscriber believes to be all that was said: applied since the last clearing.
    believed: Vec<Message>,
}

impl World {
    fn new(config: TrackerConfig, buffer: u64) -> Self {
        Self {
            tracker: Tracker::new(config),
            now: Time::ZERO,
            life: 0,
            published: 0,
            buffer,
            asked: VecDeque::new(),
            believed: Vec::new(),
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Vec<u8>>>) {
        for effect in effects {
            match effect {
                Effect::Apply { seq, payload } => {
                    let message = message(&payload);
                    assert_eq!(message.1, seq);
                    if let Some(last) = self.believed.last() {
                        assert_eq!(last.1 + 1, seq, "a hole or a repetition");
                    }
                    self.believed.push(message);
                }
                Effect::Clear(_) => self.believed.clear(),
                Effect::Replay { attempt, from, missing } => {
                    assert!(from <= missing && missing - from <= 1);
                    self.asked = VecDeque::from([(attempt, from)]);
                }
                Effect::Reconcile(loss) => panic!("{loss:?}"),
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let mut effects = Vec::new();
        self.tracker.live(self.now, message.1, bytes(message), &mut effects);
        self.carry_out(effects);
    }

    fn connect(&mut self) {
        let mut effects = Vec::new();
        self.tracker.disconnected();
        self.asked.clear();
        self.tracker.connected(self.now, &mut effects);
        self.carry_out(effects);
    }

    fn publish(&mut self, fates: &[Fate]) {
        let mut late = None;
        for fate in fates {
            let message = (self.life, self.published);
            self.published += 1;
            match fate {
                Fate::Arrives => self.deliver(message),
                Fate::Lost => {}
                Fate::Twice => {
                    self.deliver(message);
                    self.deliver(message);
                }
                Fate::Late if late.is_none() => {
                    late = Some(message);
                    continue;
                }
                Fate::Late => self.deliver(message),
            }
            if let Some(message) = late.take() {
                self.deliver(message);
            }
        }
        if let Some(message) = late {
            self.deliver(message);
        }
    }

    /// Answers what was asked for. Later messages cannot be in an answer, so what is published meanwhile waits.
    fn answer(&mut self, succeeds: bool) {
        let Some((attempt, from)) = self.asked.pop_front() else { return };
        let mut effects = Vec::new();
        if succeeds {
            for seq in from.max(self.published.saturating_sub(self.buffer))..self.published {
                self.tracker.replayed(self.now, attempt, seq, bytes((self.life, seq)), &mut effects);
            }
            self.tracker.replay_ended(self.now, attempt, &mut effects);
        } else {
            self.now = self.now + Duration::from_secs(60);
            self.tracker.handle_timeout(self.now, &mut effects);
        }
        self.carry_out(effects);
    }

    fn run(&mut self, steps: &[Step], failures: bool) {
        for step in steps {
            match step {
                Step::Publish(fates) => self.publish(fates),
                Step::Restart => {
                    self.life += 1;
                    self.published = 0;
                    self.connect();
                }
                Step::Reconnect => self.connect(),
                Step::Answer(succeeds) => self.answer(*succeeds || !failures),
            }
        }
        // Calm: messages arrive, and replays are answered until none is asked for.
        for _ in 0..3 {
            self.publish(&[Fate::Arrives]);
            for _ in 0..20 {
                self.answer(true);
            }
            assert!(self.asked.is_empty(), "a replay that never ends");
        }
        assert_eq!(self.tracker.held(), 0);
        assert_eq!(self.tracker.next_deadline(), None);
    }

    /// Everything that this process said from `first` on.
    fn truth(&self, first: u64) -> Vec<Message> {
        (first..self.published).map(|seq| (self.life, seq)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// I-TRK-2: with replays that reach back and answer, nothing is missing in the end and nothing is stale.
    #[test]
    fn with_whole_replays_nothing_is_lost(steps in steps()) {
        let mut world = World::new(TrackerConfig::engine(true), u64::MAX);
        world.run(&steps, false);
        prop_assert_eq!(&world.believed, &world.truth(0));
        prop_assert!(world.tracker.whole());
    }

    /// I-TRK-1, I-TRK-3: with short buffers and failures, what is believed is all that was said from some point
    /// on, by the process that is there.
    #[test]
    fn whatever_fails_what_is_believed_was_said(steps in steps(), buffer in 2_u64..8, held in 2_usize..30) {
        let config = TrackerConfig { held_messages_max: held, ..TrackerConfig::engine(true) };
        let mut world = World::new(config, buffer);
        world.run(&steps, true);
        // Every calm message ends up applied.
        prop_assert!(world.believed.len() >= 2);
        let first = world.believed[0].1;
        let seqs: Vec<u64> = world.believed.iter().map(|message| message.1).collect();
        prop_assert_eq!(seqs, (first..world.published).collect::<Vec<_>>());
        prop_assert_eq!(world.believed.last(), Some(&(world.life, world.published - 1)));
        prop_assert_eq!(world.tracker.whole(), first == 0);
    }

    /// I-TRK-1, I-TRK-4 on a publisher without replay, which nobody repeats or reorders.
    #[test]
    fn without_replay_a_hole_is_never_stepped_over(lost in prop::collection::vec(any::<bool>(), 1..60)) {
        let mut world = World::new(TrackerConfig::engine(false), 0);
        let fates: Vec<Fate> = lost.iter().map(|lost| if *lost { Fate::Lost } else { Fate::Arrives }).collect();
        world.publish(&fates);
        world.publish(&[Fate::Arrives]);
        let kept = lost.iter().rev().take_while(|lost| !**lost).count() as u64;
        prop_assert_eq!(&world.believed, &world.truth(lost.len() as u64 - kept));
    }
}
