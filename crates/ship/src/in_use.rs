//! Who has the volume: told to whoever would recover it from the store beside them.

use crate::{Line, found, names};
use serde_json::json;
use sluice_object::{PutMode, Store, StoreError};

/// The newest layout of the note.
const FORMAT_VERSION: u32 = 1;

/// Where a process has the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The name of its host.
    pub host: String,
    /// The volume's directory there.
    pub dir: String,
}

/// A process that began to ship and has not said that it ended with everything stored: it goes on, or was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Where; empty as far as its note cannot be read.
    pub place: Place,
    /// Since when, seconds since 1970; none where its note cannot be read.
    pub since_secs: Option<u64>,
    /// When it was last heard of. One without changes ships nothing.
    pub heard_secs: u64,
}

/// Who has the volume whose metadata is in `store`, if anybody does. Of a process that another one took over from, the note counts no more.
pub async fn in_use(store: &Store) -> Result<Option<InUse>, StoreError> {
    let Some(last) = found::find(store).await?.last else { return Ok(None) };
    let body = match store.get_blob(&names::in_use(last.fence, last.line)).await {
        Ok(body) => body,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    // That it is there is what counts, also where a newer version or damage makes the rest unknown.
    let note: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |key: &str| note[key].as_str().unwrap_or_default().to_owned();
    let place = Place { host: text("host"), dir: text("dir") };
    Ok(Some(InUse { place, since_secs: note["since_secs"].as_u64(), heard_secs: last.wall_secs }))
}

/// Notes that the process of `line` that is about to begin with the fence number `fence` has the volume at `place`. Before the fence, so that there is no
/// moment in which the note of the process before counts no more, and this one's not yet.
pub(crate) async fn begin(
    store: &Store,
    (fence, line): (u64, Line),
    Place { host, dir }: &Place,
    since_secs: u64,
) -> Result<(), StoreError> {
    let note = json!({ "format_version": FORMAT_VERSION, "host": host, "dir": dir, "since_secs": since_secs });
    store.put_blob(&names::in_use(fence, line), note.to_string().into(), PutMode::Overwrite).await
}

/// Removes notes that count no more since the one of this fence does.
pub(crate) async fn clean(store: &Store, (fence, line): (u64, Line)) -> Result<(), StoreError> {
    let kept = names::in_use(fence, line);
    for old in store.list_blobs(names::IN_USE).await?.into_iter().filter(|entry| entry.key < kept) {
        store.delete_blob(&old.key).await?;
    }
    Ok(())
}

/// The process has left everything in the store.
pub(crate) async fn end(store: &Store, (fence, line): (u64, Line)) -> Result<(), StoreError> {
    store.delete_blob(&names::in_use(fence, line)).await
}
