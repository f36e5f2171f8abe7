//! Who comes first.

use tandem_admission::HoldReason::{Behind, NoRoom, Paused};
use tandem_admission::ThunderAgentConfig;

use super::Step::{Acting, ArePaused, Asks, At, Charged, Ends, Grows, Held, Marked, Runs, Unforced};
use super::{ONE, Row, TWO, row, set};

pub(super) const ORDERS: &[Row] = &[
    row(
        "new programs go where least is used, to the lower number when that is equal",
        TWO,
        &[
            Asks("a", 400),
            Runs("a", 0),
            Asks("b", 300),
            Runs("b", 1),
            Asks("c", 100),
            Runs("c", 1),
            Asks("d", 50),
            Runs("d", 0),
        ],
    ),
    row(
        "the smallest idle program is paused first",
        ONE,
        &[Acting("a", 500), Acting("b", 210), Acting("c", 260), At(5.0), ArePaused(&["b"])],
    ),
    // 300 + 660 = 960. Without the idle one 660: nobody is marked.
    row(
        "idle programs go before running ones, however large",
        ONE,
        &[Acting("idle", 660), Asks("runs", 300), At(5.0), ArePaused(&["idle"]), Marked(0)],
    ),
    // 990; without idle 890; 890 - 100 = 790 is below 800.
    row(
        "when idle ones do not suffice the smallest running one is marked and paused at its turn's end",
        ONE,
        &[
            Acting("idle", 100),
            Asks("a", 100),
            Asks("b", 300),
            Asks("c", 490),
            At(5.0),
            ArePaused(&["idle"]),
            Marked(1),
            Ends("c", 490),
            Ends("b", 300),
            ArePaused(&["idle"]),
            Ends("a", 100),
            ArePaused(&["idle", "a"]),
        ],
    ),
    // 1000 - 150 = 850, - 160 = 690: two suffice.
    row(
        "marks stop as soon as what they will release suffices",
        ONE,
        &[Asks("a", 150), Asks("b", 160), Asks("c", 170), Asks("d", 520), At(5.0), Marked(2)],
    ),
    // At the second look 310 are spoken for: nobody is marked in addition.
    row(
        "marks of an earlier look count at the next",
        ONE,
        &[Asks("a", 150), Asks("b", 160), Asks("c", 170), Asks("d", 520), At(5.0), At(20.0), Marked(2)],
    ),
    set(
        "the package marks all",
        ONE,
        |c| *c = ThunderAgentConfig { buffer: 0, ..ThunderAgentConfig::package() },
        &[Asks("a", 150), Asks("b", 160), Asks("c", 170), Asks("d", 520), At(5.0), Marked(4)],
    ),
    row(
        "known before new before idle, whatever their sizes",
        &[2_000],
        &[
            // 1,950 are above 1,900; 350 are paused to come down to 1,600: idle (50) and known (300).
            Acting("idle", 50),
            Acting("known", 300),
            Acting("x", 1_600),
            At(5.0),
            ArePaused(&["idle", "known"]),
            Asks("known", 300),
            Asks("new", 60),
            Held("new", Behind),
            // Room: 1,700 - 1,600 = 100: new (60), and idle (50) is too much beside it.
            At(10.0),
            Held("known", Paused),
            Runs("new", 0),
            Charged(0, 60, 1_600),
        ],
    ),
    // Room 850 - 400 = 450: 100, 150 and 200.
    row(
        "the smallest are resumed first",
        ONE,
        &[
            Asks("x", 1_000),
            Asks("c", 200),
            Asks("a", 100),
            Asks("d", 210),
            Asks("b", 150),
            Ends("x", 400),
            At(5.0),
            Runs("a", 0),
            Runs("b", 0),
            Runs("c", 0),
            Held("d", Behind),
        ],
    ),
    // 850 - 500 = 350 in all. known (400) does not fit; that does not keep new (300) out.
    row(
        "what is too large is skipped",
        &[1_000],
        &[
            Acting("known", 100),
            Acting("x", 500),
            Acting("y", 360),
            At(5.0),
            // 960 - 100 = 860, - 360 = 500.
            ArePaused(&["known", "y"]),
            Asks("known", 400),
            Asks("new", 300),
            At(10.0),
            Held("known", Paused),
            Runs("new", 0),
        ],
    ),
    // Rooms 350 and 650. 400 to the larger, which leaves 250; 350 to the other.
    row(
        "the chosen are placed largest first where most room is",
        TWO,
        &[
            Asks("x", 1_000),
            Asks("y", 1_000),
            Asks("a", 350),
            Asks("b", 400),
            Ends("x", 500),
            Ends("y", 200),
            At(5.0),
            Runs("b", 1),
            Runs("a", 0),
        ],
    ),
    // Rooms 350 and 350 are 700: a fits the sum and no worker.
    row(
        "what fits the sum and no worker stays",
        TWO,
        &[
            Asks("x", 1_000),
            Asks("y", 1_000),
            Asks("a", 400),
            Ends("x", 500),
            Ends("y", 500),
            At(5.0),
            Held("a", NoRoom),
        ],
    ),
    // At 5 s worker 0 is above 950 and a is paused there; worker 1 has room, and a may use it at the next look only.
    row(
        "resuming comes before pausing: what is paused stays so until the next look",
        TWO,
        &[
            Acting("a", 300),
            Acting("y", 400),
            Asks("x", 500),
            Runs("x", 0),
            Grows("x", 200),
            At(5.0),
            ArePaused(&["a"]),
            Charged(1, 0, 400),
            At(10.0),
            Charged(1, 0, 700),
        ],
    ),
    // At 1,800 s: 200 + 200 fit below 850 beside 400, so nobody has to be forced.
    row(
        "resuming comes before forcing",
        ONE,
        &[
            Asks("x", 1_000),
            Asks("a", 200),
            At(1_799.0),
            Ends("x", 400),
            At(1_800.0),
            Runs("a", 0),
            Unforced("a"),
        ],
    ),
];
