//! What `cargo metadata` says of the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_members: BTreeSet<String>,
    pub(crate) resolve: Resolve,
    pub(crate) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Resolve {
    pub(crate) nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) deps: Vec<NodeDep>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NodeDep {
    pub(crate) pkg: String,
    pub(crate) dep_kinds: Vec<DepKind>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DepKind {
    pub(crate) kind: Option<String>,
}

impl Metadata {
    /// Asks cargo, with default features.
    pub(crate) fn load() -> Result<Self> {
        let out = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .output()
            .context("running cargo metadata")?;
        ensure!(out.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).context("reading cargo metadata")
    }

    /// The workspace's own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| self.workspace_members.contains(&p.id))
    }

    /// Names of all packages that end up in a build of `package`, itself left out; dev and build
    /// dependencies do not count.
    pub(crate) fn closure(&self, package: &Package) -> BTreeSet<&str> {
        let names: BTreeMap<&str, &str> =
            self.packages.iter().map(|p| (p.id.as_str(), p.name.as_str())).collect();
        let nodes: BTreeMap<&str, &Node> = self.resolve.nodes.iter().map(|n| (n.id.as_str(), n)).collect();
        let mut seen = BTreeSet::new();
        let mut todo = vec![package.id.as_str()];
        while let Some(id) = todo.pop() {
            for dep in nodes.get(id).map(|n| n.deps.as_slice()).unwrap_or_default() {
                let normal = dep.dep_kinds.iter().any(|k| k.kind.is_none());
                if normal && seen.insert(dep.pkg.as_str()) {
                    todo.push(&dep.pkg);
                }
            }
        }
        seen.into_iter().filter_map(|id| names.get(id).copied()).collect()
    }
}
