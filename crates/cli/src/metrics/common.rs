//! What every kind of process tells: itself, the store, the cache disk.

use sluice_monitor::{Page, resident_bytes};
use sluice_object::{StoreStats, backend::RequestKind};
use sluice_store::{Cache, CacheState, ScrubStatus};

/// The process.
pub fn process(page: &mut Page, role: &str) {
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("role", role)];
    page.gauge("sluice_build_info", "Always 1; the labels say which sluice this is.").sample(&labels, 1_u64);
    page.gauge("sluice_process_resident_memory_bytes", "Memory of the process that is in RAM.").is(resident_bytes());
}

/// Requests to the object store.
pub fn store(page: &mut Page, stats: &StoreStats) {
    let kinds = RequestKind::ALL.map(|kind| (format!("{kind:?}").to_lowercase(), stats.of(kind)));
    let mut requests =
        page.counter("sluice_store_requests_total", "Tries of requests to the object store that have ended.");
    for (kind, stats) in &kinds {
        let ended = stats.requests.saturating_sub(stats.in_flight);
        requests.add(&[("kind", kind), ("result", "ok")], ended.saturating_sub(stats.errors));
        requests.add(&[("kind", kind), ("result", "error")], stats.errors);
    }
    let mut retries = page.counter("sluice_store_retries_total", "Tries after the first of a request.");
    kinds.iter().for_each(|(kind, stats)| retries.add(&[("kind", kind)], stats.retries));
    let mut under_way = page.gauge("sluice_store_requests_in_flight", "Requests to the object store under way.");
    kinds.iter().for_each(|(kind, stats)| under_way.add(&[("kind", kind)], stats.in_flight));
    page.counter("sluice_store_sent_bytes_total", "Payload that the store has acknowledged.").is(stats.sent_bytes);
    page.counter("sluice_store_received_bytes_total", "Payload received from the store.").is(stats.received_bytes);
    page.counter("sluice_store_corrupt_answers_total", "Answers of the store that failed their checksums.")
        .is(stats.corrupt_answers);
}

/// The cache disk.
pub fn cache(page: &mut Page, cache: &Cache) {
    let stats = cache.stats();
    if let Some(status) = cache.scrub_status() {
        scrub(page, &status);
    }
    page.gauge("sluice_cache_usable", "1 while the cache disk is in use, 0 once it has failed.")
        .is(stats.state != CacheState::Failed);
    page.gauge("sluice_cache_capacity_bytes", "Room of the cache.").is(stats.capacity_bytes);
    page.gauge("sluice_cache_bytes", "Bytes in the cache: clean ones the store has too, dirty ones not yet.")
        .sample(&[("state", "clean")], stats.clean_bytes)
        .sample(&[("state", "dirty")], stats.dirty_bytes);
    page.counter("sluice_cache_hits_total", "Lookups that found the object in the cache.").is(stats.hits);
    page.counter("sluice_cache_misses_total", "Lookups that did not.").is(stats.misses);
    page.counter("sluice_cache_evictions_total", "Objects that made room for others.").is(stats.evictions);
    page.counter("sluice_cache_corrupt_segments_total", "Segments in the cache that failed their check.")
        .is(stats.corrupt_segments);
    page.counter("sluice_cache_io_errors_total", "Errors of the cache disk.").is(stats.io_errors);
}

fn scrub(page: &mut Page, status: &ScrubStatus) {
    page.gauge("sluice_scrub_running", "1 while the cache disk is read again and checked.").is(status.running);
    let done = f64::from(status.slots_done) / f64::from(status.slots.max(1));
    page.gauge("sluice_scrub_done_ratio", "How much of the latest scrub is done, 0 to 1.").is(done);
    page.gauge("sluice_scrub_read_bytes", "Bytes that the latest scrub has read.").is(status.counts.bytes);
    page.gauge("sluice_scrub_bad_segments", "Segments that the last two scrubs found to be bad.").is(status.rotten());
    page.counter("sluice_scrub_passes_total", "Scrubs of this cache that were completed, ever.").is(status.passes);
}

/// That the cache disk should be replaced, if it should.
pub fn rot(cache: &Cache) -> Option<String> {
    let scrub = cache.scrub_status().filter(ScrubStatus::is_rotting)?;
    Some(format!(
        "the cache disk is rotting: {} bad segments in the last two scrubs; replace it. Reads are right, each is checked",
        scrub.rotten()
    ))
}
