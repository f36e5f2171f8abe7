//! The same inputs lead to the same effects, byte for byte, also after having been written down.

use tandem_scheduler::Scheduler;
use tandem_scheduler::replay::{Step, replay};

use crate::chaos::Chaos;

/// I-SCH-3, I-REP-1.
#[test]
fn recorded_inputs_replayed_from_json_give_the_same_bytes() {
    for seed in 100..106 {
        let mut chaos = Chaos::new(seed);
        let config = chaos.config();
        let mut core = Scheduler::new(config.clone(), seed).expect("a valid configuration");
        let mut tee = String::new();
        let mut live = Vec::new();
        for _ in 0..1500 {
            let step = chaos.step(core.next_deadline());
            tee.push_str(&serde_json::to_string(&step).expect("serialises"));
            tee.push('\n');
            let mut effects = Vec::new();
            step.play(&mut core, &mut effects);
            chaos.carry_out(&effects);
            live.push(effects);
        }
        let steps: Vec<Step> =
            tee.lines().map(|line| serde_json::from_str(line).expect("deserialises")).collect();
        let bytes =
            |effects: &Vec<Vec<tandem_scheduler::Effect>>| serde_json::to_vec(effects).expect("serialises");
        let again = replay(config.clone(), seed, steps.clone()).expect("a valid configuration");
        assert_eq!(bytes(&live), bytes(&again), "seed {seed}");
        // Another seed decides otherwise somewhere, or the test would show nothing.
        let other = replay(config, seed + 1, steps).expect("a valid configuration");
        let random = !matches!(core.view().policy(), "round_robin");
        assert!(!random || bytes(&other) != bytes(&again), "seed {seed} does not matter");
        // And effects survive being written down.
        let read: Vec<Vec<tandem_scheduler::Effect>> =
            serde_json::from_slice(&bytes(&again)).expect("deserialises");
        assert_eq!(read, again);
    }
}
