//! What a mount and a volume's server tell.

use super::{Probe, common};
use crate::units::sum;
use futures::future::{BoxFuture, FutureExt};
use sluice_fuse::{Counts, Session};
use sluice_join::{MetaService, Overview, Reporter};
use sluice_meta::rpc::message::Liveness;
use sluice_monitor::{Page, Source};
use sluice_node::State;
use sluice_ship::Shipper;
use sluice_vfs::{MemoryStatus, Vfs, remote::Remote};
use std::sync::{Arc, Weak};

/// Room in the journal that the largest write needs (docs/disk-format.md).
const RECORD_BYTES_MAX: u64 = 2 << 20;

/// The lease of a mount by way of a server.
pub struct Lease {
    pub metadata: Arc<Remote>,
    pub reporter: Arc<Reporter>,
}

/// A volume at work in this process.
pub struct VolumeSource {
    /// `mount`, `server`, or `up`.
    pub role: &'static str,
    pub vfs: Arc<Vfs>,
    pub probe: Probe,
    pub mount: Option<Arc<Session>>,
    pub lease: Option<Lease>,
    /// Of the one that serves the volume.
    pub service: Option<Weak<MetaService>>,
    /// What takes the metadata to the store, where this process has it.
    pub ship: Option<Arc<Shipper>>,
}

impl Source for VolumeSource {
    fn metrics(&self, page: &mut Page) {
        common::process(page, self.role);
        common::store(page, &self.vfs.store_stats());
        self.vfs.cache().iter().for_each(|cache| common::cache(page, cache));
        self.data(page);
        if let Some(mount) = &self.mount {
            let mut requests =
                page.counter("sluice_fuse_requests_total", "Requests of the kernel, by what they are about.");
            let counts = mount.counts();
            for (class, count) in counts.classes() {
                requests.add(&[("class", class)], count);
            }
            reads(page, &counts);
            page.gauge(
                "sluice_fuse_ring_bytes",
                "Address space of the entries of FUSE over io_uring; 0 over /dev/fuse.",
            )
            .is(mount.ring_bytes() as u64);
        }
        if let Some(lease) = &self.lease {
            page.gauge("sluice_lease_remaining_seconds", "How long the mount may still believe what it caches.")
                .is(lease.metadata.valid().as_secs_f64());
            page.counter("sluice_lease_expiries_total", "Leases that ended before they were renewed.")
                .is(lease.reporter.lease_expiries());
        }
        if let Some(service) = self.service.as_ref().and_then(Weak::upgrade) {
            served(page, &service.overview());
        }
        if let Some(ship) = &self.ship {
            let status = ship.status();
            page.gauge("sluice_metadata_behind_records", "Changes of the metadata that the store does not have yet.")
                .is(status.behind_records);
            page.gauge("sluice_metadata_behind_seconds", "How long the oldest of them has waited.")
                .is(status.behind_ms as f64 / 1000.0);
        }
    }

    fn troubles(&self) -> BoxFuture<'_, Vec<String>> {
        async move {
            let mut troubles: Vec<String> = self.probe.trouble().await.into_iter().collect();
            if self.lease.as_ref().is_some_and(|lease| lease.metadata.valid().is_zero()) {
                troubles.push("the mount has no lease: its server does not answer, or has given it up".into());
            }
            troubles.extend(self.vfs.cache().and_then(common::rot));
            // A store that is away is the probe's trouble.
            let shipping = self.ship.as_ref().map(|ship| ship.status());
            troubles.extend(shipping.filter(|status| status.stopped).and_then(|status| status.trouble));
            match self.vfs.status() {
                Ok(status) => {
                    troubles.extend(status.trouble);
                    let journal = status.journal;
                    if journal.used_bytes + RECORD_BYTES_MAX > journal.data_capacity_bytes {
                        troubles.push(format!(
                            "the journal is full: {} of {} bytes are used, and writes wait for the store",
                            journal.used_bytes, journal.data_capacity_bytes
                        ));
                    }
                }
                Err(error) => troubles.push(format!("the metadata cannot be read: {error}")),
            }
            let vfs = self.vfs.clone();
            let is_full = tokio::task::spawn_blocking(move || vfs.journal_disk_is_full(RECORD_BYTES_MAX)).await;
            if is_full.unwrap_or_default() {
                troubles.push("the journal's disk is full: writes wait for room, or fail (ENOSPC)".into());
            }
            troubles
        }
        .boxed()
    }
}

impl VolumeSource {
    fn data(&self, page: &mut Page) {
        let Ok(status) = self.vfs.status() else { return };
        page.gauge(
            "sluice_tier_info",
            "Always 1; the label says what a sync waits for: the journal, or the object store.",
        )
        .sample(&[("tier", status.tier)], 1_u64);
        page.gauge("sluice_unstored_bytes", "Bytes that are acked and that the store does not have yet.")
            .is(status.dirty_bytes);
        page.gauge("sluice_uploads_waiting", "Objects that the store does not have yet.").is(status.dirty_objects);
        page.gauge("sluice_writes_waiting", "Writes that wait for an upload to make room.").is(status.waiting_writes);
        page.counter("sluice_uploaded_bytes_total", "Bytes of objects that were stored.").is(status.uploaded_bytes);
        page.counter("sluice_upload_errors_total", "Uploads that failed; each is tried again.")
            .is(status.upload_errors);
        page.counter("sluice_written_bytes_total", "Bytes that programs wrote.").is(status.written_bytes);
        page.counter(
            "sluice_read_bytes_total",
            "Bytes that programs read: from here, or fetched for it from elsewhere.",
        )
        .sample(&[("source", "here")], status.read_cached_bytes)
        .sample(&[("source", "elsewhere")], status.read_stored_bytes);
        page.counter("sluice_fetches_total", "Fetches of objects that were not here, by who was asked.")
            .sample(&[("from", "store")], status.fetches)
            .sample(&[("from", "nodes")], status.group_fetches);
        page.gauge("sluice_open_files", "Files that are open or known.").is(status.open_files);
        memory(page, &status.memory);
        if let Some(gc) = status.gc {
            page.gauge("sluice_dead_bytes", "Bytes in the store that no file has any more.").is(gc.dead_bytes);
            page.gauge("sluice_tombstones", "Objects without users that wait for their deletion.").is(gc.tombstones);
            page.counter("sluice_objects_deleted_total", "Objects without users that were deleted.")
                .is(gc.deleted_objects);
            page.counter("sluice_repacked_bytes_total", "Bytes that were moved out of objects that were mostly dead.")
                .is(gc.repacked_bytes);
        }
        let journal = status.journal;
        page.gauge("sluice_journal_used_bytes", "Bytes of the journal that are in use.").is(journal.used_bytes);
        page.gauge("sluice_journal_capacity_bytes", "Room of the journal; file data may use data of it.")
            .sample(&[("of", "all")], journal.capacity_bytes)
            .sample(&[("of", "data")], journal.data_capacity_bytes);
    }
}

/// How a mount's reactors answered reads.
fn reads(page: &mut Page, counts: &Counts) {
    page.counter(
        "sluice_fuse_reads_total",
        "Reads that a reactor answered by itself, by how their bytes went to the kernel.",
    )
    .sample(&[("by", "copy")], counts.reads_copied)
    .sample(&[("by", "splice")], counts.reads_spliced);
    page.counter("sluice_fuse_splice_fallbacks_total", "Reads that were copied instead of spliced, by why.")
        .sample(&[("reason", "pipe")], counts.pipes_too_small)
        .sample(&[("reason", "error")], counts.splice_failures);
    page.counter(
        "sluice_fuse_read_allocations_total",
        "Memory that reactors asked for while they answered those reads.",
    )
    .is(counts.read_allocations);
}

fn memory(page: &mut Page, memory: &MemoryStatus) {
    page.gauge("sluice_memory_capacity_bytes", "Memory for what is read.").is(memory.capacity_bytes);
    page.gauge("sluice_memory_used_bytes", "Memory of answers under way and of what is read ahead.")
        .is(memory.used_bytes);
    page.counter("sluice_read_ahead_bytes_total", "Bytes that were fetched before anybody asked for them.")
        .is(memory.ahead_bytes);
    page.counter("sluice_read_ahead_ended_bytes_total", "What became of them: asked for, or dropped before.")
        .sample(&[("as", "used")], memory.ahead_used_bytes)
        .sample(&[("as", "useless")], memory.ahead_useless_bytes);
    page.counter(
        "sluice_read_ahead_refused_total",
        "Requests that were not made ahead, for lack of memory or because the way was busy.",
    )
    .is(memory.ahead_refused);
    page.gauge("sluice_pace_bytes", "How much may be under way before nothing more is read ahead, and how much is.")
        .sample(&[("of", "limit")], memory.pace_limit_bytes)
        .sample(&[("of", "used")], memory.pace_used_bytes);
}

/// Sessions and nodes of a volume's server.
fn served(page: &mut Page, overview: &Overview) {
    let mut sessions = page.gauge("sluice_sessions", "Sessions of mounts, by state.");
    for (state, name) in [(Liveness::Live, "live"), (Liveness::Grace, "grace"), (Liveness::Expired, "expired")] {
        sessions.add(&[("state", name)], overview.sessions.iter().filter(|s| s.status.state == state).count());
    }
    let reported = overview.sessions.iter().filter_map(|session| session.unstored);
    page.gauge("sluice_sessions_unstored_bytes", "Bytes that mounts have acked and not stored, as they said last.")
        .is(sum(reported.map(|(report, _)| report.bytes)));
    page.counter("sluice_lease_expiries_total", "Leases that ended before they were renewed.")
        .is(overview.lease_expiries);
    page.gauge("sluice_connections", "Peers that are connected.").is(overview.connections);
    page.gauge("sluice_group_epoch", "Number of the list of nodes.").is(overview.epoch);
    let mut nodes = page.gauge("sluice_group_nodes", "Nodes of the group, by state.");
    for (state, name) in [(State::Active, "active"), (State::Draining, "draining")] {
        nodes.add(&[("state", name)], overview.nodes.iter().filter(|(node, _)| node.member.state == state).count());
    }
    let used = sum(overview.nodes.iter().map(|(node, _)| node.numbers.used_bytes));
    page.gauge("sluice_group_used_bytes", "Bytes that the nodes hold.").is(used);
    let capacity = sum(overview.nodes.iter().map(|(node, _)| node.member.capacity_bytes));
    page.gauge("sluice_group_capacity_bytes", "Room of the nodes' caches.").is(capacity);
}
