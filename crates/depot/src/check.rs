//! Whether engines are there, let us in, and keep what they are given.

use crate::config::Config;
use crate::connection::Connection;
use crate::nodes::Nodes;
use anyhow::{bail, Context, Result};
use redis::ConnectionInfo;

impl Config {
    /// Looks whether every engine is there, lets us in, and will not drop what it keeps; and whether they are a cluster's, whose other nodes are looked at too.
    ///
    /// # Errors
    /// What hinders that, with the remedy.
    pub fn check(&mut self) -> Result<()> {
        let in_cluster = self.nodes.iter().map(look_at).collect::<Result<Vec<_>>>()?;
        self.cluster = in_cluster.contains(&true);
        if self.cluster && in_cluster.contains(&false) {
            bail!("some of these engines are nodes of a cluster, and others stand alone: name those of one kind");
        }
        if self.cluster {
            return self.check_cluster();
        }
        if self.nodes.len() < self.copies() {
            bail!("copies={}: so many engines are named: {}", self.copies(), self.nodes.len());
        }
        Ok(())
    }

    fn check_cluster(&mut self) -> Result<()> {
        let mut nodes = Nodes::new(self.clone());
        nodes.find();
        let name = self.nodes[0].addr();
        let infos: Vec<&ConnectionInfo> = nodes.all.iter().map(|node| &node.info).collect();
        if nodes.ranges.is_empty() {
            bail!("the cluster at {name} has given no slots to its nodes: redis-cli --cluster create");
        }
        for node in &infos {
            look_at(node)?;
        }
        let copies = *self.copies.get_or_insert(infos.len().min(2));
        if infos.len() < copies {
            bail!("copies={copies}: the cluster at {name} has {} nodes that keep keys", infos.len());
        }
        let alone = nodes.ranges.iter().any(|range| !range.has_replica);
        if copies > 1 && alone && nodes.all_stop_with_one() {
            bail!(
                "the cluster at {name} stops when one of its nodes does, and a copy would be of no use: \
                 CONFIG SET cluster-require-full-coverage no on each, or give each a replica"
            );
        }
        Ok(())
    }
}

/// Whether the engine is a node of a cluster, if it will do.
fn look_at(node: &ConnectionInfo) -> Result<bool> {
    let name = node.addr().to_string();
    let mut connection = Connection::to(node).with_context(|| format!("cannot use the engine at {name}"))?;
    let info: String = redis::cmd("INFO")
        .query(&mut connection)
        .with_context(|| format!("cannot use the engine at {name}"))?;
    let value = |key: &str| {
        let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(of).unwrap_or_default()
    };
    let policy = value("maxmemory_policy");
    if value("maxmemory") != "0" && !policy.is_empty() && policy != "noeviction" {
        bail!(
            "the engine at {name} drops keys when it is full ({policy}), and with them the program's memory: \
             CONFIG SET maxmemory-policy noeviction there"
        );
    }
    Ok(value("cluster_enabled") == "1")
}
