//! What the store has, and taking it over.

use crate::{
    blob::{self, About, BadBlob, HEADER_BYTES, Kind, Line},
    head::Head,
    names,
};
use sluice_base::Seq;
use sluice_object::{PutMode, Store, StoreError, backend::ListEntry};
use std::collections::HashSet;

/// Blobs of the log that are under way at once: a sync that comes while one is need not wait for that before its own.
pub(crate) const BLOBS_MAX: usize = 4;

/// Something in the store that does not parse, although it was read twice, or that is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} in the store is damaged: {source}")]
pub struct Damage {
    /// Which.
    pub key: String,
    /// How.
    pub source: BadBlob,
}

/// What the store has.
pub(crate) struct Found {
    /// The newest checkpoint.
    pub(crate) head: Option<Head>,
    /// The blob of the log behind the last one.
    pub(crate) next: u64,
    /// The header of the last one that counts; none without a log.
    pub(crate) last: Option<About>,
    /// Bytes of the log from the checkpoint on.
    pub(crate) log_bytes: u64,
    /// The newest checkpoint or one of the last blobs cannot be used.
    pub(crate) damage: Option<Damage>,
}

impl Found {
    /// The last record that comes back; none without a checkpoint that leads to the end of the log.
    pub(crate) fn end(&self) -> Option<Seq> {
        let head = self.head.as_ref().filter(|_| self.damage.is_none())?;
        match self.last {
            None => Some(head.begin()),
            Some(last) => (last.since <= head.begin).then_some(Seq(last.last.max(head.begin))),
        }
    }

    /// Whose it is.
    pub(crate) fn line(&self) -> Option<Line> {
        self.last.map(|last| last.line).or(self.head.as_ref().map(|head| head.line))
    }
}

/// Looks what the store has.
pub(crate) async fn find(store: &Store) -> Result<Found, StoreError> {
    let mut found = look(store).await?;
    // What is missing may have been put, or be replaced by a newer checkpoint, while it was listed.
    while found.damage.as_ref().is_some_and(|damage| damage.source == BadBlob::Missing) {
        let again = look(store).await?;
        if (&again.head, &again.damage) == (&found.head, &found.damage) {
            return Ok(again);
        }
        found = again;
    }
    Ok(found)
}

async fn look(store: &Store) -> Result<Found, StoreError> {
    let keys: Vec<String> = store.list_blobs(names::CHECKPOINTS).await?.into_iter().map(|entry| entry.key).collect();
    let has_parts: HashSet<&str> = keys.iter().map(String::as_str).collect();
    let log = store.list_blobs(names::LOG).await?;
    let mut numbers: Vec<u64> = log.iter().filter_map(|entry| names::log_number(&entry.key)).collect();
    numbers.sort_unstable();
    let (head, mut damage) = newest(store, &keys, None).await?;
    let end = numbers.last().map_or(0, |last| last + 1);
    let mut next = head.as_ref().map_or(end, |head| names::chain(&numbers, head.log));
    let begins_late = head.as_ref().is_some_and(|head| head.log == next);
    // What comes behind a checkpoint is put before its head.
    let gap = if begins_late { Some(next) } else { missing(store, &numbers, next).await? };
    if gap.is_some() {
        // None of those that are there may be made again.
        next = end.max(next);
    }
    // Of those that were under way when another process took over, the last few may be void: so many as a fence covers.
    let window = next.saturating_sub(2 * BLOBS_MAX as u64)..next;
    let (mut last, mut bad_blob): (Option<About>, _) = (None, None);
    for &number in numbers.iter().filter(|number| window.contains(number)) {
        match read(store, &names::log(number), |bytes| blob::decode(bytes).map(|blob| blob.about)).await? {
            Ok(about) => last = last.filter(|last| last.fence > about.fence).or(Some(about)),
            Err(bad) => bad_blob = Some((number, bad)),
        }
    }
    let head = match (head, &last) {
        (Some(head), Some(last)) if is_late(&head, last) => newest(store, &keys, Some(last)).await?.0,
        (head, _) => head,
    };
    if let Some(head) = &head {
        let mut parts = (0..head.parts).map(|number| names::part(head.log, head.run, number));
        let missing = parts.find(|key| !has_parts.contains(key.as_str()));
        damage = damage.or(missing.map(|key| Damage { key, source: BadBlob::Missing }));
    }
    let first = head.as_ref().map_or(0, |head| head.log);
    if let Some(base) = last.map(|last| last.base).filter(|base| *base > first) {
        // Of whose head nothing is left but its number; another one with its parts may be named by them.
        let key = names::any_head(base, &keys);
        damage = damage.or(Some(Damage { key, source: BadBlob::Missing }));
    }
    damage = damage.or(gap.map(|number| Damage { key: names::log(number), source: BadBlob::Missing }));
    damage = damage.or(bad_blob.filter(|(number, _)| *number >= first).map(|(_, bad)| bad));
    let counts = |key: &str| names::log_number(key).is_some_and(|number| (first..next).contains(&number));
    let log_bytes = log.iter().filter(|entry| counts(&entry.key)).map(|entry| entry.bytes).sum();
    Ok(Found { head, next, last, log_bytes, damage })
}

/// The number `gap` of the log, which is not there although some of `numbers` behind it are, if it ever was: it may also have been under way, with
/// a few behind it, when a process ended.
async fn missing(store: &Store, numbers: &[u64], gap: u64) -> Result<Option<u64>, StoreError> {
    let behind = || numbers.iter().filter(|number| **number > gap);
    if behind().any(|number| number - gap >= BLOBS_MAX as u64) {
        return Ok(Some(gap));
    }
    for &number in behind() {
        let found = read(store, &names::log(number), |bytes| blob::decode(bytes).map(|blob| blob.about)).await?;
        if found.is_ok_and(|about| about.there > gap) {
            return Ok(Some(gap));
        }
    }
    Ok(None)
}

/// Whether a checkpoint arrived only when somebody else had taken over: what comes behind does not lead on from it.
fn is_late(head: &Head, last: &About) -> bool {
    head.fence < last.fence && head.log > last.base
}

/// The head of the newest checkpoint that counts, in view of the last blob of the log.
async fn newest(
    store: &Store,
    keys: &[String],
    last: Option<&About>,
) -> Result<(Option<Head>, Option<Damage>), StoreError> {
    let mut heads: Vec<&String> = keys.iter().filter(|key| key.ends_with("/head")).collect();
    heads.sort_unstable();
    for key in heads.into_iter().rev() {
        match read(store, key, Head::parse).await? {
            Ok(head) if last.is_some_and(|last| is_late(&head, last)) => {}
            Ok(head) => return Ok((Some(head), None)),
            Err(damage) => return Ok((None, Some(damage))),
        }
    }
    Ok((None, None))
}

/// Reads and parses, twice where it does not parse: it may be damaged on its way only.
async fn read<T>(
    store: &Store,
    key: &str,
    parse: impl Fn(&[u8]) -> Result<T, BadBlob>,
) -> Result<Result<T, Damage>, StoreError> {
    if let Ok(value) = parse(&store.get_blob(key).await?) {
        return Ok(Ok(value));
    }
    match parse(&store.get_blob(key).await?) {
        // Not damage: it must stay as it is.
        Err(newer @ BadBlob::Newer(_)) => Err(StoreError::Newer { key: key.to_owned(), detail: newer.to_string() }),
        other => Ok(other.map_err(|source| Damage { key: key.to_owned(), source })),
    }
}

/// Ends the log of whoever has shipped so far, with the fence `about`; returns the number that comes next. `None` when somebody has just made one
/// more.
///
/// The blob with the fence's number is created: whoever is first has it. What comes behind it may be under way as well and even be there; it
/// is void, and replaced, as its number is needed. A fence there is another's, who has taken over meanwhile. As everybody goes on from number to
/// number, and creates before replacing, nobody replaces another's fence or what came behind it.
pub(crate) async fn fence(store: &Store, about: About) -> Result<Option<u64>, StoreError> {
    debug_assert_eq!(about.kind, Kind::Fence);
    let body = blob::encode::<&[u8]>(about, &[]);
    let next = about.fence + BLOBS_MAX as u64;
    for number in about.fence..next {
        let key = names::log(number);
        match store.put_blob(&key, body.clone(), PutMode::Create).await {
            Err(StoreError::Exists { .. }) if number > about.fence => {
                let found = read(store, &key, |bytes| blob::decode(bytes).map(|blob| blob.about)).await?;
                if found.is_ok_and(|found| found.fence > about.fence) {
                    return Ok(None);
                }
                store.put_blob(&key, body.clone(), PutMode::Overwrite).await?;
            }
            Err(StoreError::Exists { .. }) => return Ok(None),
            other => other?,
        }
    }
    Ok(Some(next))
}

/// Removes what `head` and the log behind it do not need.
pub(crate) async fn clean(store: &Store, head: &Head) -> Result<(), StoreError> {
    for key in unneeded(store, head).await?.into_iter().map(|entry| entry.key) {
        store.delete_blob(&key).await?;
    }
    Ok(())
}

/// A process that stood still for so long, and was taken over from meanwhile, might find the number of its next blob free again.
const FENCES_STAY_SECS: i64 = 24 * 3600;

/// What `head` and the log behind it do not need; heads first: without its parts one is worse than none. Fences stay for a day.
pub(crate) async fn unneeded(store: &Store, head: &Head) -> Result<Vec<ListEntry>, StoreError> {
    let kept = names::checkpoint(head.log, head.run);
    let (parts, log) = (store.list_blobs(names::CHECKPOINTS).await?, store.list_blobs(names::LOG).await?);
    let now = log.iter().map(|entry| entry.modified).max().unwrap_or_default();
    let is_old = |entry: &ListEntry| {
        let may_stop_somebody =
            entry.bytes == HEADER_BYTES as u64 && now.seconds_since(entry.modified) < FENCES_STAY_SECS;
        names::log_number(&entry.key).is_some_and(|number| number < head.log) && !may_stop_somebody
    };
    let old = parts.into_iter().filter(|entry| entry.key < kept).chain(log.into_iter().filter(is_old));
    let (heads, others): (Vec<_>, Vec<_>) = old.partition(|entry| entry.key.ends_with("/head"));
    Ok(heads.into_iter().chain(others).collect())
}

#[cfg(test)]
mod tests;
