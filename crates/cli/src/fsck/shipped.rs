//! The metadata's copy in the store.

use super::{byte_bar, report::Item};
use crate::volume::Volume;
use sluice_ship::RestoreError;

/// Whether the volume could be recovered from it; read `whole`, or only its newest parts. Nothing ever shipped is nothing wrong: the next mount
/// does it.
pub async fn check(volume: &Volume, whole: bool) -> Option<Item> {
    let found = match sluice_ship::survey(&volume.store).await {
        Ok(found) => found,
        Err(error) => return Some(Item::shipped(&error.to_string())),
    };
    if let Some(Err(other)) = found.line.map(|line| line.check(volume.line)) {
        return Some(Item::shipped(&other.to_string()));
    }
    if let Some(damage) = found.damage {
        return Some(Item::shipped(&format!("{damage}; the next `sluice up` makes a new checkpoint")));
    }
    match volume.namespace.was_shipped(volume.line.0) {
        Ok(true) if found.line.is_none() => {
            return Some(Item::shipped("it is not there any more; the next `sluice up` ships it again"));
        }
        Ok(_) => {}
        Err(error) => return Some(Item::shipped(&error.to_string())),
    }
    if !whole {
        return None;
    }
    let bar = byte_bar(0, "reading the metadata in the store");
    let read = sluice_ship::verify(&volume.store, |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    let read = read.await;
    bar.finish_and_clear();
    match read {
        Ok(_) | Err(RestoreError::Nothing(_)) => None,
        Err(error) => Some(Item::shipped(&error.to_string())),
    }
}
