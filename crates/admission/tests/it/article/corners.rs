//! What the description leaves to be read between its lines.

use tandem_admission::HoldReason::{Behind, NoRoom, Paused};

use super::Step::{
    Acting, Anywhere, ArePaused, Asks, At, Charged, Ends, Forced, Grows, Held, Leaves, Lost, Marked, Over,
    Ready, Runs, Urgency,
};
use super::{ONE, Row, TWO, row, set};

pub(super) const CORNERS: &[Row] = &[
    row(
        "a program in place passes without a test, whatever it grows to",
        ONE,
        &[Acting("a", 400), Acting("b", 500), Asks("a", 5_000), Runs("a", 0), Charged(0, 5_000, 500)],
    ),
    row(
        "a paused program waits for the look although there is room",
        ONE,
        &[
            Acting("a", 460),
            Acting("b", 500),
            At(5.0),
            ArePaused(&["a"]),
            Asks("a", 100),
            Held("a", Paused),
            At(9.9),
            Held("a", Paused),
            At(10.0),
            Runs("a", 0),
        ],
    ),
    row(
        "new programs queue behind a paused one that asks for nothing",
        ONE,
        &[Acting("a", 460), Acting("b", 500), At(5.0), ArePaused(&["a"]), Asks("c", 10), Held("c", Behind)],
    ),
    row(
        "a held turn is more urgent once",
        ONE,
        &[
            Asks("x", 1_000),
            Asks("a", 100),
            Ends("x", 100),
            At(5.0),
            Urgency("a", 1),
            Ends("a", 100),
            Asks("a", 100),
            Urgency("a", 0),
        ],
    ),
    // a is demoted at 5 s (0.85) and paused at 10 s (0.96): resumed at 15 s, its demotion of 5 s is over by 12.5 s.
    row(
        "a pause outlasts a demotion",
        ONE,
        &[
            Acting("a", 350),
            Acting("b", 500),
            At(5.0),
            Asks("b", 500),
            Urgency("b", -2),
            Ends("b", 610),
            At(10.0),
            ArePaused(&["a"]),
            Asks("a", 200),
            At(15.0),
            Urgency("a", 1),
        ],
    ),
    set(
        "urgencies can be as inert as in the package",
        ONE,
        |c| c.priorities = false,
        &[Acting("a", 850), At(5.0), Asks("a", 850), Urgency("a", 0)],
    ),
    // Home of a was worker 0, which has 300 left below 850; worker 1 has 850.
    row(
        "a resumed program goes where most room is, not home",
        TWO,
        &[
            Acting("a", 410),
            Acting("y", 500),
            Asks("x", 550),
            Runs("x", 0),
            Over("y"),
            At(5.0),
            ArePaused(&["a"]),
            Asks("a", 250),
            At(10.0),
            Runs("a", 1),
        ],
    ),
    row(
        "marks are withdrawn when the pressure is gone",
        ONE,
        &[
            Asks("a", 200),
            Asks("b", 790),
            At(5.0),
            Marked(1),
            Ends("b", 100),
            At(10.0),
            Ends("a", 200),
            ArePaused(&[]),
        ],
    ),
    set(
        "in the package they stay",
        ONE,
        |c| c.keep_marks = true,
        &[
            Asks("a", 200),
            Asks("b", 790),
            At(5.0),
            Marked(1),
            Ends("b", 100),
            At(10.0),
            Ends("a", 200),
            ArePaused(&["a"]),
        ],
    ),
    row(
        "what is generated counts while it is",
        ONE,
        &[Acting("a", 300), Asks("b", 600), Grows("b", 51), At(5.0), ArePaused(&["a"])],
    ),
    row(
        "the engine's count replaces the estimate",
        ONE,
        &[
            Asks("a", 900),
            Charged(0, 900, 0),
            Ends("a", 400),
            Charged(0, 0, 400),
            Asks("b", 600),
            Runs("b", 0),
        ],
    ),
    row(
        "an aborted wait leaves the program paused as it was",
        ONE,
        &[
            Acting("a", 300),
            Acting("b", 660),
            At(5.0),
            ArePaused(&["a"]),
            Asks("a", 310),
            Leaves("a"),
            Charged(0, 0, 660),
            Asks("a", 190),
            At(10.0),
            Runs("a", 0),
        ],
    ),
    // x ends with 10 and is over: 850 are free at once for the look, 900 never are.
    row(
        "what exceeds the ceiling alone goes in by force only",
        ONE,
        &[
            Asks("x", 1_000),
            Asks("a", 900),
            Over("x"),
            Ends("x", 10),
            At(5.0),
            Held("a", NoRoom),
            At(1_800.0),
            Forced("a"),
        ],
    ),
    // x counts 940 in full, but nothing after 30 min away; y runs and counts 930.
    row(
        "force goes where least is used, idle programs counting half for each second away",
        TWO,
        &[
            Acting("x", 940),
            Asks("y", 930),
            Asks("a", 900),
            Held("a", NoRoom),
            At(1_800.0),
            Forced("a"),
            Runs("a", 0),
            // The pause that follows in the same look takes x: 1,840 are above 950.
            ArePaused(&["x"]),
            Charged(0, 900, 0),
        ],
    ),
    row(
        "a session's end frees its place for the next look",
        ONE,
        &[Acting("a", 900), Asks("b", 500), Over("a"), Charged(0, 0, 0), At(5.0), Runs("b", 0)],
    ),
    row(
        "a program whose worker is lost is placed anew",
        TWO,
        &[Acting("a", 600), Lost(0), Asks("a", 600), Runs("a", 1)],
    ),
    row(
        "and waits when no other has room",
        TWO,
        &[Acting("a", 600), Asks("b", 900), Runs("b", 1), Lost(0), Asks("a", 600), Held("a", NoRoom)],
    ),
    set(
        "in the package it goes anywhere",
        TWO,
        |c| c.pass_unplaceable = true,
        &[Acting("a", 600), Asks("b", 900), Lost(0), Asks("a", 600), Anywhere("a")],
    ),
    row(
        "while nobody tells a capacity everything passes",
        &[],
        &[Ready(0, None), Asks("a", 100_000), Anywhere("a"), Asks("b", 100_000), Anywhere("b")],
    ),
    row(
        "a worker without capacity gets nothing while others tell theirs",
        &[1_000],
        &[Ready(1, None), Asks("a", 900), Runs("a", 0), Asks("b", 500), Held("b", NoRoom)],
    ),
    row(
        "force waits for a worker",
        ONE,
        &[
            Asks("x", 1_000),
            Asks("a", 500),
            Lost(0),
            At(1_900.0),
            Held("a", NoRoom),
            Ready(0, Some(1_000)),
            At(1_905.0),
            Runs("a", 0),
        ],
    ),
    row(
        "a larger pool takes what waits at the next look",
        ONE,
        &[Asks("x", 1_000), Asks("a", 500), Ready(0, Some(2_000)), Held("a", NoRoom), At(5.0), Runs("a", 0)],
    ),
    // Two turns of one program side by side: both are charged, and its context is that of the longer.
    row(
        "turns of one program that overlap are charged each",
        ONE,
        &[Asks("a", 300), Asks("a", 100), Charged(0, 400, 0), Ends("a", 110), Charged(0, 300, 0)],
    ),
];
