//! The master's REST interface: listings, checks and counts, each bounded in time and size.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::Request;
use http_body_util::BodyExt;
use serde::Deserialize;
use tandem_types::EngineKind;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::store::StoreEventsConfig;
use crate::client::{HttpClient, empty};
use crate::control::Control;
use crate::spec::BaseUrl;
use crate::state::{Bootstrap, Target};

/// Longest key that is read, in bytes.
const KEY_BYTES_MAX: usize = 4096;
/// Longest query of one check, in bytes.
const QUERY_BYTES_MAX: usize = 8192;
/// Pages that may wait for the subscriber before the listing stops reading.
const PAGES_MAX: usize = 4;

/// A part of what a listing or a check brought.
#[derive(Debug)]
pub(super) enum Page {
    Listed(Vec<Arc<str>>),
    Absent(Vec<Arc<str>>),
    End {
        /// A listing of all keys, not a check of some.
        listing: bool,
        keys: u64,
        odd: u64,
        error: Option<String>,
    },
}

/// A listing or check under way. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Job {
    pages: mpsc::Receiver<Page>,
    listing: bool,
    _task: AbortOnDropHandle<()>,
}

impl Job {
    /// The next page; the last one is [`Page::End`].
    pub(super) async fn next(&mut self) -> Page {
        self.pages.recv().await.unwrap_or_else(|| Page::End {
            listing: self.listing,
            keys: 0,
            odd: 0,
            error: Some("the listing's task ended without a word".to_owned()),
        })
    }
}

/// `/kv_events/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Published {
    #[serde(default)]
    pub(super) enabled: bool,
    #[serde(default)]
    pub(super) published_batches: u64,
    #[serde(default)]
    pub(super) dropped_events: u64,
}

#[derive(Deserialize)]
struct Checked {
    data: BTreeMap<String, CheckedKey>,
}

#[derive(Deserialize)]
struct CheckedKey {
    ok: bool,
    #[serde(default)]
    error: Option<String>,
}

/// Asks the master.
#[derive(Debug, Clone)]
pub(super) struct Rest {
    control: Control,
    silence: Duration,
    total: Duration,
    keys_max: usize,
    page_keys: usize,
}

/// What a job has counted.
#[derive(Default)]
struct Tally {
    keys: u64,
    odd: u64,
}

impl Rest {
    pub(super) fn new(client: HttpClient, admin: BaseUrl, config: &StoreEventsConfig) -> Self {
        let target = Target {
            base: Arc::new(admin),
            kind: EngineKind::OpenAi,
            api_key: None,
            rank: None,
            host: None,
            bootstrap: Bootstrap::default(),
            priority: false,
        };
        Self {
            control: Control { client, target, timeout: config.listing_timeout },
            silence: config.listing_timeout,
            total: config.listing_total,
            keys_max: config.keys_max,
            page_keys: config.page_keys,
        }
    }

    pub(super) async fn published(&self) -> Result<Published, String> {
        let path = "/kv_events/status";
        let answer = self.control.get(path).await.map_err(|error| error.to_string())?;
        if !answer.ok() {
            return Err(format!("{path}: status {}", answer.status.as_u16()));
        }
        serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: {error}"))
    }

    /// Lists all keys.
    pub(super) fn list(&self) -> Job {
        let rest = self.clone();
        spawn(true, |pages| async move {
            let mut tally = Tally::default();
            let until = Instant::now() + rest.total;
            let whole = rest.list_all(&pages, &mut tally);
            let result = timeout_at(until, whole).await;
            let result =
                result.unwrap_or_else(|_| Err(format!("/get_all_keys: not done within {:?}", rest.total)));
            (tally, result)
        })
    }

    /// Asks for these keys only.
    pub(super) fn check(&self, keys: Vec<Arc<str>>) -> Job {
        let rest = self.clone();
        spawn(false, |pages| async move {
            let mut tally = Tally::default();
            let until = Instant::now() + rest.total;
            let whole = rest.check_all(keys, &pages, &mut tally);
            let result = timeout_at(until, whole).await;
            let result = result
                .unwrap_or_else(|_| Err(format!("/batch_query_keys: not done within {:?}", rest.total)));
            (tally, result)
        })
    }

    async fn list_all(&self, pages: &mpsc::Sender<Page>, tally: &mut Tally) -> Result<(), String> {
        let path = "/get_all_keys";
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let mut request = Request::new(empty());
        *request.uri_mut() = self.control.target.base.uri(path).map_err(|error| failed(&error))?;
        let answer = self.control.client.send_within(request, self.silence).await;
        let answer = answer.map_err(|error| failed(&error))?;
        if !answer.status().is_success() {
            return Err(format!("{path}: status {}", answer.status().as_u16()));
        }
        let mut body = answer.into_body();
        let mut lines = Lines::default();
        let mut page = Vec::new();
        loop {
            let frame = match timeout(self.silence, body.frame()).await {
                Ok(Some(frame)) => frame.map_err(|error| failed(&error))?,
                Ok(None) => break,
                Err(_) => return Err(format!("{path}: nothing for {:?}", self.silence)),
            };
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data);
            while let Some(key) = lines.next(tally) {
                self.add(key, &mut page, pages, tally).await.map_err(|error| failed(&error))?;
            }
        }
        if let Some(key) = lines.last(tally) {
            self.add(key, &mut page, pages, tally).await.map_err(|error| failed(&error))?;
        }
        // Fails only when nobody wants to know any more.
        let _ = pages.send(Page::Listed(page)).await;
        Ok(())
    }

    async fn add(
        &self,
        key: Arc<str>,
        page: &mut Vec<Arc<str>>,
        pages: &mpsc::Sender<Page>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        tally.keys += 1;
        if usize::try_from(tally.keys).is_ok_and(|keys| keys > self.keys_max) {
            return Err(format!("more than {} keys", self.keys_max));
        }
        page.push(key);
        if page.len() >= self.page_keys {
            let _ = pages.send(Page::Listed(std::mem::take(page))).await;
        }
        Ok(())
    }

    async fn check_all(
        &self,
        keys: Vec<Arc<str>>,
        pages: &mpsc::Sender<Page>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        if keys.len() > self.keys_max {
            return Err(format!("/batch_query_keys: more than {} keys", self.keys_max));
        }
        let mut query = String::new();
        let mut asked = 0;
        for key in keys {
            // The master splits at commas, written as they are or not.
            if key.is_empty() || key.contains(',') || key.len() > KEY_BYTES_MAX / 3 {
                tally.odd += 1;
                continue;
            }
            if asked > 0 {
                query.push(',');
            }
            escape(&key, &mut query);
            asked += 1;
            tally.keys += 1;
            if asked >= self.page_keys || query.len() > QUERY_BYTES_MAX - KEY_BYTES_MAX {
                self.check_some(&std::mem::take(&mut query), pages).await?;
                asked = 0;
            }
        }
        if asked > 0 { self.check_some(&query, pages).await } else { Ok(()) }
    }

    async fn check_some(&self, query: &str, pages: &mpsc::Sender<Page>) -> Result<(), String> {
        let path = "/batch_query_keys";
        let answer = self.control.get(&format!("{path}?keys={query}")).await;
        // The error names the whole query, which is too long for people.
        let answer = answer.map_err(|error| {
            let text = error.to_string();
            format!(
                "{path}{}",
                text.rsplit_once(": ").map_or("", |(at, _)| text.get(at.len()..).unwrap_or(""))
            )
        })?;
        if !answer.ok() {
            return Err(format!("{path}: status {}", answer.status.as_u16()));
        }
        let checked: Checked =
            serde_json::from_slice(&answer.body).map_err(|error| format!("{path}: {error}"))?;
        let (mut listed, mut absent) = (Vec::new(), Vec::new());
        for (key, found) in checked.data {
            match found {
                CheckedKey { ok: true, .. } => listed.push(Arc::from(key)),
                CheckedKey { error: Some(error), .. } if error == "OBJECT_NOT_FOUND" => {
                    absent.push(Arc::from(key))
                }
                // Being written just now, or the master has another trouble: no answer.
                CheckedKey { .. } => {}
            }
        }
        let _ = pages.send(Page::Listed(listed)).await;
        let _ = pages.send(Page::Absent(absent)).await;
        Ok(())
    }
}

fn spawn<F>(listing: bool, work: impl FnOnce(mpsc::Sender<Page>) -> F) -> Job
where
    F: Future<Output = (Tally, Result<(), String>)> + Send + 'static,
{
    let (sender, pages) = mpsc::channel(PAGES_MAX);
    let work = work(sender.clone());
    let task = tokio::spawn(async move {
        let (tally, result) = work.await;
        let end = Page::End { listing, keys: tally.keys, odd: tally.odd, error: result.err() };
        // Fails only when nobody wants to know any more.
        let _ = sender.send(end).await;
    });
    Job { pages, listing, _task: AbortOnDropHandle::new(task) }
}

/// Percent-encodes whatever a query value may not hold.
fn escape(key: &str, out: &mut String) {
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'@' | b':' | b'/') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Cuts a body into lines.
#[derive(Default)]
struct Lines {
    rest: BytesMut,
    /// Of `rest`, known to hold no line's end.
    seen: usize,
    /// Within a line that is too long.
    skipping: bool,
}

impl Lines {
    fn push(&mut self, data: &[u8]) {
        self.rest.extend_from_slice(data);
    }

    fn next(&mut self, tally: &mut Tally) -> Option<Arc<str>> {
        loop {
            let found = self.rest.get(self.seen..)?.iter().position(|byte| *byte == b'\n');
            let Some(found) = found else {
                self.seen = self.rest.len();
                if self.seen > KEY_BYTES_MAX {
                    tally.odd += u64::from(!self.skipping);
                    self.skipping = true;
                    self.rest.clear();
                    self.seen = 0;
                }
                return None;
            };
            let line = self.rest.split_to(self.seen + found);
            self.rest.advance(1);
            self.seen = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if let Some(key) = key(&line, tally) {
                return Some(key);
            }
        }
    }

    /// What stands behind the last line's end.
    fn last(&mut self, tally: &mut Tally) -> Option<Arc<str>> {
        if self.skipping { None } else { key(&self.rest.split(), tally) }
    }
}

fn key(line: &[u8], tally: &mut Tally) -> Option<Arc<str>> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return None;
    }
    let key = std::str::from_utf8(line).ok().filter(|key| key.len() <= KEY_BYTES_MAX);
    tally.odd += u64::from(key.is_none());
    key.map(Arc::from)
}
