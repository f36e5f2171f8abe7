//! A mock engine's way to a mock store.
//!
//! - Purpose: speak for the store to the engine model, which asks without waiting.
//! - Inputs: the keys of each request, before it is submitted; the model's questions and puts. Outputs: HTTP
//!   calls to the store, before a request is submitted and after each pass.
//! - Invariants: I-STC-1 the model finds only what the store had when the request came; I-STC-2 a store that
//!   does not answer is an empty one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use tandem_engine_model::SharedStore;
use tandem_kvwire::mooncake::vllm::VllmLayout;
use tandem_types::Time;

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names remembered; beyond that all are forgotten but those of the request at hand.
const NAMES_MAX: usize = 1 << 20;

/// A request's block keys and the names of their objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(pub(crate) Vec<(u64, Arc<str>)>);

impl Names {
    /// Of blocks with these digests, under vLLM's naming.
    pub(crate) fn vllm(layout: &VllmLayout, digests: &[tandem_kvwire::hash::vllm::VllmDigest]) -> Self {
        let name = |digest: &tandem_kvwire::hash::vllm::VllmDigest| {
            let key = layout.keys(digest.bytes()).next()?;
            Some((digest.id(), Arc::from(key.to_string())))
        };
        Self(digests.iter().filter_map(name).collect())
    }
}

#[derive(Debug)]
pub(crate) struct RemoteStore {
    pool: Client<HttpConnector, Full<Bytes>>,
    url: String,
    segment: String,
    object_bytes: u64,
    names: HashMap<u64, Arc<str>>,
    /// Keys that the store had when it was asked last.
    there: HashSet<u64>,
    used: Vec<u64>,
    puts: Vec<u64>,
    /// Found, put: objects.
    pub(crate) gets: u64,
    pub(crate) saved: u64,
}

#[derive(Serialize)]
struct Ask<'a> {
    keys: &'a [Arc<str>],
    size: u64,
    segment: &'a str,
}

#[derive(Deserialize)]
struct Exists {
    exists: Vec<bool>,
}

impl RemoteStore {
    pub(crate) fn new(url: &str, segment: String, object_bytes: u64) -> Self {
        Self {
            pool: Client::builder(TokioExecutor::new()).build_http(),
            url: url.trim_end_matches('/').to_owned(),
            segment,
            object_bytes,
            names: HashMap::new(),
            there: HashSet::new(),
            used: Vec::new(),
            puts: Vec::new(),
            gets: 0,
            saved: 0,
        }
    }

    /// Asks what the store has of a request that is about to be submitted.
    pub(crate) async fn look_up(&mut self, names: &Names) {
        if self.names.len() > NAMES_MAX {
            self.names.clear();
            self.there.clear();
        }
        let texts: Vec<Arc<str>> = names.0.iter().map(|(_, name)| Arc::clone(name)).collect();
        let exists = match self.call("exists", &texts).await {
            Some(body) => serde_json::from_slice::<Exists>(&body).map(|e| e.exists).unwrap_or_default(),
            None => Vec::new(),
        };
        for (at, (key, name)) in names.0.iter().enumerate() {
            self.names.insert(*key, Arc::clone(name));
            if exists.get(at).copied().unwrap_or(false) {
                self.there.insert(*key);
            } else {
                self.there.remove(key);
            }
        }
    }

    /// Tells the store what a pass used and put.
    pub(crate) async fn flush(&mut self) {
        let name = |keys: Vec<u64>, names: &HashMap<u64, Arc<str>>| -> Vec<Arc<str>> {
            keys.iter().filter_map(|key| names.get(key).cloned()).collect()
        };
        let used = name(std::mem::take(&mut self.used), &self.names);
        if !used.is_empty() {
            self.gets += used.len() as u64;
            self.call("get", &used).await;
        }
        let puts = name(std::mem::take(&mut self.puts), &self.names);
        if !puts.is_empty() {
            self.saved += puts.len() as u64;
            self.call("put", &puts).await;
        }
    }

    async fn call(&self, what: &str, keys: &[Arc<str>]) -> Option<Bytes> {
        let ask = Ask { keys, size: self.object_bytes, segment: &self.segment };
        let body = serde_json::to_vec(&ask).ok()?;
        let uri = format!("{}/mock/{what}", self.url);
        let request = Request::builder().method(Method::POST).uri(uri).body(Full::from(body)).ok()?;
        let answer = async {
            let response = self.pool.request(request).await.ok()?;
            if !response.status().is_success() {
                return None;
            }
            Some(response.into_body().collect().await.ok()?.to_bytes())
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await.ok().flatten();
        if answer.is_none() {
            tracing::warn!(url = self.url, what, "store does not answer");
        }
        answer
    }
}

impl SharedStore for RemoteStore {
    fn find(&mut self, keys: &[u64], _: Time) -> usize {
        let found = keys.iter().take_while(|key| self.there.contains(*key)).count();
        self.used.extend(keys.iter().take(found));
        found
    }

    fn put(&mut self, keys: &[u64], _: Time) -> Vec<bool> {
        keys.iter()
            .map(|key| {
                let news = self.names.contains_key(key) && self.there.insert(*key);
                if news {
                    self.puts.push(*key);
                }
                news
            })
            .collect()
    }

    fn read(&mut self, _: u64, now: Time) -> Time {
        now
    }
}
