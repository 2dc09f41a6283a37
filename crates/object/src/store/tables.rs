//! Tables of objects that were read lately, so that reading an object in parts costs the request for its table once.

use sluice_base::ObjectId;
use sluice_run::{collections::HashMap, lock::Mutex};
use std::sync::Arc;
use tokio::sync::OnceCell;

use crate::{StoreError, format::ObjectTable};

/// Tables of a generation, of which there are two: 256 of 4 KiB are 1 MiB.
const TABLES_MAX: usize = 128;

type Cell = Arc<OnceCell<Arc<ObjectTable>>>;

#[derive(Default)]
pub(super) struct Tables(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    current: HashMap<ObjectId, Cell>,
    /// Those of before, of which who is looked for moves on.
    previous: HashMap<ObjectId, Cell>,
}

impl Tables {
    /// The table, if it is known.
    pub(super) fn get(&self, object: ObjectId) -> Option<Arc<ObjectTable>> {
        let all = self.0.lock();
        let cell = all.current.get(&object).or_else(|| all.previous.get(&object));
        cell.and_then(|cell| cell.get().cloned())
    }

    /// Remembers a table that was read on the way.
    pub(super) fn put(&self, object: ObjectId, table: &Arc<ObjectTable>) {
        let _ = self.cell(object).set(table.clone());
    }

    /// The table, which `read` reads for all who ask for it meanwhile.
    pub(super) async fn get_or_read(
        &self,
        object: ObjectId,
        read: impl Future<Output = Result<ObjectTable, StoreError>>,
    ) -> Result<Arc<ObjectTable>, StoreError> {
        let cell = self.cell(object);
        cell.get_or_try_init(|| async { read.await.map(Arc::new) }).await.cloned()
    }

    fn cell(&self, object: ObjectId) -> Cell {
        let mut all = self.0.lock();
        if let Some(cell) = all.current.get(&object) {
            return cell.clone();
        }
        if all.current.len() >= TABLES_MAX {
            all.previous = std::mem::take(&mut all.current);
        }
        let cell = all.previous.remove(&object).unwrap_or_default();
        all.current.insert(object, cell.clone());
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> ObjectId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&n.to_le_bytes());
        ObjectId(id)
    }

    #[test]
    fn those_in_use_are_remembered_and_not_too_many() {
        let tables = Tables::default();
        let table = Arc::new(ObjectTable::plain(id(0), &[Some(vec![1].into())]).unwrap());
        for n in 0..1000 {
            tables.put(id(n), &table);
            tables.put(id(0), &table);
        }
        assert!(tables.get(id(0)).is_some() && tables.get(id(999)).is_some() && tables.get(id(1)).is_none());
        let all = tables.0.lock();
        assert!(all.current.len() + all.previous.len() <= 2 * TABLES_MAX);
    }
}
