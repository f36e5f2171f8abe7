//! What a Mooncake store holds: its events, checked against its REST interface.
//!
//! - Purpose: follow the master's publisher and list its keys whenever events may have been missed, and every
//!   now and then in any case: evictions at the watermark, unmounted segments and dead clients are not published.
//! - Inputs: messages of the master's PUB socket; `/get_all_keys`, `/batch_query_keys`, `/kv_events/status`.
//!   Outputs: [`StoreUpdate`]s into a bounded channel, in an order that an index can apply as it is.
//! - Invariants:
//!   - I-STO-1 `ListingBegins` is sent before the listing is asked for, and whatever the events said afterwards
//!     comes after it: an index for which events win over a listing under way is right;
//!   - I-STO-2 each `ListingBegins` is followed by one `ListingEnds`, with no other listing in between;
//!   - I-STO-3 a listing that was cut short, too large or too slow ends with `complete: false`;
//!   - I-STO-4 after each [`StoreUpdate::Doubt`] a listing begins as soon as the master can be asked;
//!   - I-STO-5 keys, pages and requests under way are bounded by [`StoreEventsConfig`];
//!   - I-STO-6 the listing after a new connection begins when the master's counts are known: what was published
//!     before is in it, and what is published later and missed shows in the counts.
//! - Deliberately absent: the index, key syntax, tenants other than the master's `default` in listings (its REST
//!   interface has no others), following a failover to another master.
//! - Sources: Mooncake 0.3.14, captures and `mooncake-store/src/kv_event`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tandem_kvwire::mooncake::StoreBatch;
use tandem_kvwire::mooncake::event;
use tandem_kvwire::{Effect, Loss, Tracker, TrackerConfig, parse_message};
use tandem_types::Time;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::endpoint::ZmqEndpoint;
use super::link::{Link, LinkEvent, LinkTimes};
use super::store_rest::{Job, Page, Published, Rest};
use super::{KvEventsConfig, WAIT_MIN};
use crate::client::HttpClient;
use crate::spec::BaseUrl;

/// Checks ([`StoreEvents::check`]) that may wait.
const CHECKS_MAX: usize = 16;

/// A change of what a store is known to hold.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreUpdate {
    /// Objects came and went.
    Batch {
        /// The batch's number.
        seq: u64,
        /// What happened.
        batch: StoreBatch,
    },
    /// Something may have been missed. What is known stands until the next listing.
    Doubt(StoreDoubt),
    /// A listing is about to be asked for.
    ListingBegins,
    /// These objects are there. Only within a listing.
    Listed(Vec<Arc<str>>),
    /// These objects are not there. Only within a listing.
    Absent(Vec<Arc<str>>),
    /// The listing is over.
    ListingEnds {
        /// Every key was listed: what was not mentioned is not there.
        complete: bool,
    },
}

/// Why something may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreDoubt {
    /// Messages were lost.
    Gap,
    /// The master is another process than before.
    Restart,
    /// The connection was lost.
    Disconnected,
    /// The master dropped events, or published some that did not arrive.
    Dropped,
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpec {
    /// The master's `--kv_events_bind_endpoint`; a wildcard host is `admin`'s. `None` = listings only.
    pub events: Option<ZmqEndpoint>,
    /// The master's metrics and admin address.
    pub admin: BaseUrl,
}

/// How a store is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEventsConfig {
    /// Connections, as with engines; the settings of replays do not matter here.
    pub link: KvEventsConfig,
    /// Time between the ends of listings and the next one without a reason.
    pub listing_interval: Duration,
    /// Shortest time between the end of a listing and the next one, whatever the reason; also after a failure.
    pub listing_pause: Duration,
    /// Longest silence within a listing.
    pub listing_timeout: Duration,
    /// Longest listing.
    pub listing_total: Duration,
    /// Most keys of a listing or a check.
    pub keys_max: usize,
    /// Keys in one update.
    pub page_keys: usize,
    /// Time between looks at `/kv_events/status`.
    pub status_interval: Duration,
}

impl Default for StoreEventsConfig {
    fn default() -> Self {
        Self {
            link: KvEventsConfig::default(),
            listing_interval: Duration::from_secs(60),
            listing_pause: Duration::from_secs(1),
            listing_timeout: Duration::from_secs(5),
            listing_total: Duration::from_secs(60),
            keys_max: 8_000_000,
            page_keys: 1024,
            status_interval: Duration::from_secs(5),
        }
    }
}

impl StoreEventsConfig {
    fn clamped(mut self) -> Self {
        self.link = self.link.clamped();
        for wait in [
            &mut self.listing_interval,
            &mut self.listing_pause,
            &mut self.listing_timeout,
            &mut self.listing_total,
            &mut self.status_interval,
        ] {
            *wait = (*wait).clamp(WAIT_MIN, Duration::from_secs(24 * 3600));
        }
        self.page_keys = self.page_keys.clamp(1, 65_536);
        self
    }
}

/// A store's event stream, for people and metrics. Counts are since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct StoreStatus {
    /// The publisher is connected.
    pub connected: bool,
    /// The master says that it publishes events; `None` = it was not asked yet, or did not answer.
    pub publishes: Option<bool>,
    /// Something may have been missed since the last complete listing.
    pub doubted: bool,
    /// The last batch handed on.
    pub last_seq: Option<u64>,
    /// Connections made.
    pub connects: u64,
    /// Connections lost.
    pub disconnects: u64,
    /// Batches handed on.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events left out because they are of no known form.
    pub skipped_events: u64,
    /// Messages that could not be decoded at all, and were left out.
    pub decode_errors: u64,
    /// Holes in the sequence.
    pub gaps: u64,
    /// Messages lost in them.
    pub lost: u64,
    /// Restarts of the master noticed.
    pub restarts: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Complete listings.
    pub listings: u64,
    /// Listings that failed or were too large.
    pub failed_listings: u64,
    /// Checks done.
    pub checks: u64,
    /// Keys of the last complete listing.
    pub listed_keys: u64,
    /// Keys that could not be read or asked for: too long, not UTF-8, with a comma in a check.
    pub odd_keys: u64,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

enum Order {
    Reconcile,
    Check(Vec<Arc<str>>),
}

/// The subscriber of one store.
#[derive(Debug)]
pub struct StoreEvents {
    status: Arc<Mutex<StoreStatus>>,
    orders: mpsc::Sender<Order>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl StoreEvents {
    /// Follows a store. Must be called inside a tokio runtime. When `updates` is full, nothing is read.
    #[must_use]
    pub fn start(
        spec: StoreSpec,
        client: HttpClient,
        config: StoreEventsConfig,
        updates: mpsc::Sender<StoreUpdate>,
    ) -> Self {
        let config = config.clamped();
        let status = Arc::new(Mutex::new(StoreStatus { doubted: true, ..StoreStatus::default() }));
        let stop = CancellationToken::new();
        let (orders, inbox) = mpsc::channel(CHECKS_MAX);
        let host = spec.admin.host();
        let link = spec
            .events
            .map(|endpoint| Link::new(endpoint.on_host(&host).to_string(), LinkTimes::from(&config.link)));
        let now = Instant::now();
        let link_absent = link.is_none();
        let follower = Follower {
            rest: Rest::new(client, spec.admin, &config),
            updates,
            status: Arc::clone(&status),
            tracker: Tracker::new(TrackerConfig::mooncake()),
            effects: Vec::new(),
            link,
            orders: inbox,
            job: None,
            checks: Vec::new(),
            start: now,
            // Connecting asks for the first listing; a publisher out of reach does not hold it up for long.
            wanted: link_absent,
            listing_at: now + config.link.connect_timeout,
            quiet_until: now,
            doubts: 0,
            doubts_at_listing: 0,
            status_at: now,
            asking: None,
            uncounted: false,
            published: None,
            excused: 0,
            config,
        };
        let token = stop.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                _ = follower.run() => {}
            }
        });
        Self { status, orders, stop, task: Mutex::new(Some(task)) }
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> StoreStatus {
        lock(&self.status).clone()
    }

    /// Asks for a listing soon. False when it is over.
    pub fn reconcile(&self) -> bool {
        match self.orders.try_send(Order::Reconcile) {
            // A full queue gets there too: each order is followed by a look at what is wanted.
            Ok(()) => true,
            Err(error) => matches!(error, mpsc::error::TrySendError::Full(_)),
        }
    }

    /// Asks whether these objects are there; the answer comes as a listing that is not complete. False when too
    /// many such questions wait, or there are too many keys.
    #[must_use]
    pub fn check(&self, keys: Vec<Arc<str>>) -> bool {
        self.orders.try_send(Order::Check(keys)).is_ok()
    }

    /// Ends it and waits until it is over. No further updates.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // An error is the task's panic, which the runtime has reported.
            let _ = task.await;
        }
    }
}

impl Drop for StoreEvents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn lock(status: &Mutex<StoreStatus>) -> MutexGuard<'_, StoreStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody receives updates any more.
struct Closed;

struct Follower {
    config: StoreEventsConfig,
    rest: Rest,
    updates: mpsc::Sender<StoreUpdate>,
    status: Arc<Mutex<StoreStatus>>,
    tracker: Tracker<Bytes>,
    effects: Vec<Effect<Bytes>>,
    link: Option<Link>,
    orders: mpsc::Receiver<Order>,
    job: Option<Job>,
    checks: Vec<Vec<Arc<str>>>,
    start: Instant,
    /// A listing is wanted for a reason.
    wanted: bool,
    /// A listing is due without a reason.
    listing_at: Instant,
    /// No listing before.
    quiet_until: Instant,
    doubts: u64,
    doubts_at_listing: u64,
    status_at: Instant,
    asking: Option<JoinHandle<Result<Published, String>>>,
    /// A connection is new and the master's counts at its beginning are not known: a listing waits for them, so
    /// that what they count is in it, and what comes later and is missed shows in the counts.
    uncounted: bool,
    published: Option<Published>,
    /// Batches up to this count may be missing without a doubt: they were published before we listened, or the
    /// doubt was raised already.
    excused: u64,
}

enum Step {
    Link(LinkEvent),
    Page(Page),
    Order(Option<Order>),
    Listing,
    AskStatus,
    Status(Result<Published, String>),
}

impl Follower {
    async fn run(mut self) -> Result<(), Closed> {
        loop {
            match self.wait().await {
                Step::Link(event) => self.linked(event).await?,
                Step::Page(page) => self.page(page).await?,
                Step::Order(Some(Order::Reconcile)) => self.wanted = true,
                Step::Order(Some(Order::Check(keys))) => self.checks.push(keys),
                // The handle is gone, and with it this task, soon.
                Step::Order(None) => return Ok(()),
                Step::Listing => self.begin_listing().await?,
                Step::AskStatus => {
                    let rest = self.rest.clone();
                    self.asking = Some(tokio::spawn(async move { rest.published().await }));
                }
                Step::Status(result) => self.take_status(result).await?,
            }
            if self.job.is_none()
                && let Some(keys) = self.checks.pop()
            {
                self.tell(StoreUpdate::ListingBegins).await?;
                self.job = Some(self.rest.check(keys));
            }
        }
    }

    async fn wait(&mut self) -> Step {
        let due = if self.wanted { self.quiet_until } else { self.listing_at.max(self.quiet_until) };
        tokio::select! {
            event = next_event(&mut self.link) => Step::Link(event),
            page = next_page(&mut self.job) => Step::Page(page),
            order = self.orders.recv(), if self.checks.len() < CHECKS_MAX => Step::Order(order),
            () = sleep_until(due), if self.job.is_none() && !self.uncounted => Step::Listing,
            () = sleep_until(self.status_at), if self.asking.is_none() => Step::AskStatus,
            result = asked(&mut self.asking) => Step::Status(result),
        }
    }

    async fn begin_listing(&mut self) -> Result<(), Closed> {
        self.wanted = false;
        self.doubts_at_listing = self.doubts;
        self.tell(StoreUpdate::ListingBegins).await?;
        self.job = Some(self.rest.list());
        Ok(())
    }

    async fn page(&mut self, page: Page) -> Result<(), Closed> {
        match page {
            Page::Listed(keys) | Page::Absent(keys) if keys.is_empty() => Ok(()),
            Page::Listed(keys) => self.tell(StoreUpdate::Listed(keys)).await,
            Page::Absent(keys) => self.tell(StoreUpdate::Absent(keys)).await,
            Page::End { listing, keys, odd, error } => {
                self.job = None;
                let complete = listing && error.is_none();
                let now = Instant::now();
                if listing {
                    self.quiet_until = now + self.config.listing_pause;
                    self.listing_at = now + self.config.listing_interval;
                    // A doubt that is not settled yet asks again.
                    self.wanted |= !complete;
                }
                {
                    let mut status = lock(&self.status);
                    status.odd_keys += odd;
                    if complete {
                        status.listings += 1;
                        status.listed_keys = keys;
                        status.doubted &= self.doubts != self.doubts_at_listing;
                    } else if listing {
                        status.failed_listings += 1;
                    } else if error.is_none() {
                        status.checks += 1;
                    }
                    if let Some(error) = error {
                        status.last_error = Some(error);
                    }
                }
                self.tell(StoreUpdate::ListingEnds { complete }).await
            }
        }
    }

    async fn linked(&mut self, event: LinkEvent) -> Result<(), Closed> {
        let now = Time::ZERO + self.start.elapsed();
        match event {
            LinkEvent::Connected => {
                {
                    let mut status = lock(&self.status);
                    status.connects += 1;
                    status.connected = true;
                }
                // What was published before the subscription took effect is in the listing.
                self.wanted = true;
                self.published = None;
                self.uncounted = true;
                // An answer under way may count less than was published before this connection.
                self.asking = None;
                self.status_at = Instant::now();
                self.tracker.connected(now, &mut self.effects);
            }
            LinkEvent::Message(frames) => self.message(now, frames),
            LinkEvent::Lost(error) => {
                {
                    let mut status = lock(&self.status);
                    status.disconnects += 1;
                    status.connected = false;
                    status.last_error = Some(error);
                }
                self.tracker.disconnected();
                self.doubt(StoreDoubt::Disconnected).await?;
            }
            LinkEvent::Failed(error) => lock(&self.status).last_error = Some(error),
        }
        self.carry_out().await
    }

    fn message(&mut self, now: Time, mut frames: Vec<Bytes>) {
        let parts: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
        let seq = parse_message(&parts).map(|message| message.seq);
        match (seq, frames.pop()) {
            (Ok(seq), Some(payload)) => self.tracker.live(now, seq, payload, &mut self.effects),
            (Err(error), _) => {
                let mut status = lock(&self.status);
                status.decode_errors += 1;
                status.last_error = Some(error.to_string());
            }
            (Ok(_), None) => {}
        }
    }

    async fn carry_out(&mut self) -> Result<(), Closed> {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Apply { seq, payload } => self.apply(seq, &payload).await?,
                Effect::Clear(loss) | Effect::Reconcile(loss) => {
                    self.doubt(match loss {
                        Loss::Restart => StoreDoubt::Restart,
                        Loss::Gap { .. } => StoreDoubt::Gap,
                    })
                    .await?;
                }
                // The master has no replay socket, and its tracker is configured so.
                Effect::Replay { .. } => {}
            }
        }
        let stats = self.tracker.stats();
        let mut status = lock(&self.status);
        status.gaps = stats.gaps;
        status.lost = stats.lost;
        status.restarts = stats.restarts;
        status.duplicates = stats.duplicates;
        Ok(())
    }

    async fn apply(&mut self, seq: u64, payload: &[u8]) -> Result<(), Closed> {
        let decoded = match event::decode(payload) {
            Ok(decoded) => decoded,
            Err(error) => {
                {
                    let mut status = lock(&self.status);
                    status.decode_errors += 1;
                    status.last_seq = Some(seq);
                    status.last_error = Some(format!("message {seq}: {error}"));
                }
                return self.doubt(StoreDoubt::Gap).await;
            }
        };
        let events = u64::try_from(decoded.batch.events.len()).unwrap_or(u64::MAX);
        self.tell(StoreUpdate::Batch { seq, batch: decoded.batch }).await?;
        let mut status = lock(&self.status);
        status.batches += 1;
        status.events += events;
        status.skipped_events += u64::from(decoded.skipped.total());
        status.last_seq = Some(seq);
        Ok(())
    }

    /// The master's own counts: what it dropped, and what it published and we never saw.
    async fn take_status(&mut self, result: Result<Published, String>) -> Result<(), Closed> {
        self.asking = None;
        self.uncounted = false;
        self.status_at = Instant::now() + self.config.status_interval;
        let published = match result {
            Ok(published) => published,
            Err(error) => {
                let mut status = lock(&self.status);
                status.publishes = None;
                status.last_error = Some(error);
                return Ok(());
            }
        };
        let last_seq = {
            let mut status = lock(&self.status);
            status.publishes = Some(published.enabled);
            status.last_seq
        };
        let Some(before) = self.published.replace(published) else {
            // What was published before this first answer is in the listing that connecting asked for, which
            // begins only now.
            self.excused = published.published_batches;
            return Ok(());
        };
        // Numbers never lag behind the count of batches: what was counted an interval ago is overdue now.
        let overdue = before.published_batches > self.excused
            && last_seq.unwrap_or(0) < before.published_batches
            && self.link.is_some();
        if published.published_batches < before.published_batches {
            self.excused = 0;
            self.doubt(StoreDoubt::Restart).await?;
        } else if published.dropped_events > before.dropped_events || overdue {
            self.excused = published.published_batches;
            self.doubt(StoreDoubt::Dropped).await?;
        }
        Ok(())
    }

    async fn doubt(&mut self, doubt: StoreDoubt) -> Result<(), Closed> {
        tracing::debug!(?doubt, "store events in doubt");
        self.doubts += 1;
        self.wanted = true;
        lock(&self.status).doubted = true;
        self.tell(StoreUpdate::Doubt(doubt)).await
    }

    async fn tell(&mut self, update: StoreUpdate) -> Result<(), Closed> {
        self.updates.send(update).await.map_err(|_| Closed)
    }
}

async fn next_event(link: &mut Option<Link>) -> LinkEvent {
    match link {
        Some(link) => link.next().await,
        None => std::future::pending().await,
    }
}

async fn next_page(job: &mut Option<Job>) -> Page {
    match job {
        Some(job) => job.next().await,
        None => std::future::pending().await,
    }
}

async fn asked(asking: &mut Option<JoinHandle<Result<Published, String>>>) -> Result<Published, String> {
    match asking {
        Some(asking) => asking.await.unwrap_or_else(|error| Err(error.to_string())),
        None => std::future::pending().await,
    }
}
