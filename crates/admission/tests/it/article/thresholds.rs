//! Thresholds: the last value on each side.

use std::time::Duration;

use tandem_admission::HoldReason::{NoRoom, Paused};

use super::Step::{Acting, ArePaused, Asks, At, Ends, Forced, Held, Leaves, Marked, Over, Runs, Urgency};
use super::{ONE, Row, TWO, row, set};

pub(super) const THRESHOLDS: &[Row] = &[
    // 400 + 600 = 1000: all of the worker, not 95 % of it.
    row("a new program may fill a worker to its end", ONE, &[Acting("a", 400), Asks("b", 600), Runs("b", 0)]),
    // 400 + 601 = 1001.
    row("and no further", ONE, &[Acting("a", 400), Asks("b", 601), Held("b", NoRoom)]),
    // Used 400 + 100 for a; b needs 400 + 100: 1000.
    set(
        "the buffer counts for those in place and for the newcomer",
        ONE,
        |c| c.buffer = 100,
        &[Acting("a", 400), Asks("b", 400), Runs("b", 0)],
    ),
    set(
        "a token more than the buffers leave does not fit",
        ONE,
        |c| c.buffer = 100,
        &[Acting("a", 400), Asks("b", 401), Held("b", NoRoom)],
    ),
    row("at 0.95 nothing is paused", ONE, &[Acting("a", 450), Acting("b", 500), At(5.0), ArePaused(&[])]),
    // 951 - 450 = 501.
    row("above 0.95 something is", ONE, &[Acting("a", 450), Acting("b", 501), At(5.0), ArePaused(&["a"])]),
    // Two buffers of 100 make 951 of 751.
    set(
        "buffers count towards 0.95",
        ONE,
        |c| c.buffer = 100,
        &[Acting("a", 250), Acting("b", 501), At(5.0), ArePaused(&["a"])],
    ),
    // 1000 - 200 = 800.
    row(
        "pausing stops at 0.80",
        ONE,
        &[Acting("a", 200), Acting("b", 300), Acting("c", 500), At(5.0), ArePaused(&["a"])],
    ),
    // 1000 - 199 = 801, - 300 = 501.
    row(
        "pausing goes on above 0.80",
        ONE,
        &[Acting("a", 199), Acting("b", 300), Acting("c", 501), At(5.0), ArePaused(&["a", "b"])],
    ),
    // Paused at 5 s: 960 - 260 = 700. 700 + 150 = 850.
    row(
        "a paused program is resumed up to 0.85",
        ONE,
        &[
            Acting("a", 260),
            Acting("b", 700),
            At(5.0),
            ArePaused(&["a"]),
            Asks("a", 150),
            At(10.0),
            Runs("a", 0),
        ],
    ),
    row(
        "and no further than 0.85",
        ONE,
        &[
            Acting("a", 260),
            Acting("b", 700),
            At(5.0),
            Asks("a", 151),
            Held("a", Paused),
            At(1_799.9),
            Held("a", Paused),
        ],
    ),
    // Used 600 + 100 for b. Room 850 - 700 = 150 and a needs 50 + 100.
    set(
        "the buffer counts for what is resumed",
        ONE,
        |c| c.buffer = 100,
        &[
            Acting("a", 200),
            Acting("b", 600),
            At(5.0),
            ArePaused(&["a"]),
            Asks("a", 50),
            At(10.0),
            Runs("a", 0),
        ],
    ),
    set(
        "a token more than the buffer leaves is not resumed",
        ONE,
        |c| c.buffer = 100,
        &[Acting("a", 200), Acting("b", 600), At(5.0), Asks("a", 51), At(10.0), Held("a", Paused)],
    ),
    // 0.95 - 0.20 = 0.75: 700 + 50.
    set(
        "the hysteresis lies below the pause threshold",
        ONE,
        |c| c.resume_hysteresis = 0.2,
        &[
            Acting("a", 260),
            Acting("b", 700),
            At(5.0),
            Asks("a", 51),
            At(10.0),
            Held("a", Paused),
            Leaves("a"),
            Asks("a", 50),
            At(15.0),
            Runs("a", 0),
        ],
    ),
    row(
        "below 0.80 nothing is demoted",
        ONE,
        &[Acting("a", 300), Acting("b", 499), At(5.0), Asks("a", 300), Urgency("a", 0)],
    ),
    row(
        "from 0.80 on turns are demoted",
        ONE,
        &[Acting("a", 300), Acting("b", 500), At(5.0), Asks("a", 300), Urgency("a", -2)],
    ),
    // 0.949 is in the band from 0.80 to 0.95, 0.950 is not, and it is not above 0.95 either.
    row(
        "just below 0.95 turns are demoted",
        ONE,
        &[Acting("a", 300), Acting("b", 649), At(5.0), Asks("a", 300), Urgency("a", -2)],
    ),
    row(
        "at 0.95 turns are neither demoted nor paused",
        ONE,
        &[Acting("a", 300), Acting("b", 650), At(5.0), ArePaused(&[]), Asks("a", 300), Urgency("a", 0)],
    ),
    // The look at 5 s finds 0.80 and its word holds for a tick and a half; the one at 10 s finds 0.60.
    row(
        "a demotion holds for a tick and a half",
        ONE,
        &[
            Acting("a", 300),
            Acting("b", 300),
            Acting("c", 200),
            At(5.0),
            Over("c"),
            At(12.4),
            Asks("a", 300),
            Urgency("a", -2),
            Ends("a", 300),
            At(12.5),
            Asks("b", 300),
            Urgency("b", 0),
        ],
    ),
    row(
        "a demotion concerns the worker's own programs",
        TWO,
        &[Acting("a", 850), Acting("b", 700), At(5.0), Asks("b", 700), Runs("b", 1), Urgency("b", 0)],
    ),
    row(
        "30 min after it was held a turn goes in by force",
        ONE,
        &[
            Asks("x", 1_000),
            At(7.0),
            Asks("a", 500),
            At(1_804.9),
            Held("a", NoRoom),
            At(1_810.0),
            Forced("a"),
        ],
    ),
    // x runs all the time. a is paused at 5 s and asks at 1,000 s: forced at the first look from 2,800 s on.
    row(
        "the 30 min begin when the turn asks, not when its program was paused",
        ONE,
        &[
            Acting("a", 60),
            Asks("x", 900),
            At(5.0),
            ArePaused(&["a"]),
            At(1_000.0),
            Asks("a", 60),
            At(2_795.0),
            Held("a", Paused),
            At(2_800.0),
            Forced("a"),
        ],
    ),
    row(
        "a look every 5 s",
        ONE,
        &[Asks("a", 900), Asks("b", 500), Ends("a", 100), At(4.9), Held("b", NoRoom), At(5.0), Runs("b", 0)],
    ),
    set(
        "or as often as set",
        ONE,
        |c| c.tick = Duration::from_secs(2),
        &[Asks("a", 900), Asks("b", 500), Ends("a", 100), At(1.9), Held("b", NoRoom), At(2.0), Runs("b", 0)],
    ),
    // 0.5 * 800 = 400 and 600 more.
    set(
        "idle programs can weigh less",
        ONE,
        |c| c.acting_weight = 0.5,
        &[Acting("a", 800), Asks("b", 600), Runs("b", 0)],
    ),
    // The formula of the article names ACTING programs alone; its text and all code count both.
    set(
        "running programs can be left out of account",
        ONE,
        |c| c.count_reasoning = false,
        &[Asks("a", 900), Asks("b", 900), Runs("b", 0), At(5.0), Marked(0)],
    ),
    // The paper's own figures: pause and resume at 1.0.
    set(
        "thresholds can be those of the paper",
        ONE,
        |c| (c.pause_threshold, c.pause_target, c.resume_hysteresis) = (1.0, 1.0, 0.0),
        &[
            Acting("a", 200),
            Acting("b", 800),
            At(5.0),
            ArePaused(&[]),
            Asks("b", 800),
            Ends("b", 801),
            At(10.0),
            ArePaused(&["a"]),
            Asks("a", 199),
            At(15.0),
            Runs("a", 0),
        ],
    ),
];
