use super::*;
use futures::FutureExt;

const SEGMENT: usize = SEGMENT_BYTES;
const OBJECT: ObjectId = ObjectId([7; 16]);

fn part(offset: usize, len: usize) -> Part {
    Part { object: OBJECT, offset: offset as u32, len }
}

fn whole(segments: Range<u32>) -> Part {
    part(segments.start as usize * SEGMENT, segments.len() * SEGMENT)
}

fn ahead(pool: &Arc<Pool>, owner: &Arc<Owner>, segments: Range<u32>, now: u64) -> Vec<Claim> {
    pool.claim(&whole(segments), Some(owner), Duration::from_secs(now))
}

fn for_reader(pool: &Arc<Pool>, segments: Range<u32>) -> Vec<Claim> {
    pool.claim(&whole(segments), None, Duration::ZERO)
}

fn bytes_of(index: u32) -> Bytes {
    vec![index as u8; SEGMENT].into()
}

fn some_room() -> Room {
    super::super::Budget::new(1 << 30).try_take_ahead(1).unwrap()
}

/// Settles what of the claims is the caller's turn.
fn settle(claims: Vec<Claim>) {
    for Claim { segments, turn, .. } in claims {
        if let Some(mut turn) = turn {
            turn.settle(Ok(segments.map(bytes_of).collect()));
            turn.keep(some_room());
        }
    }
}

fn counts(pool: &Pool) -> (u64, u64, u64) {
    let segments = |count: &AtomicU64| count.load(Relaxed) / SEGMENT as u64;
    (segments(&pool.counts.ahead), segments(&pool.counts.used), segments(&pool.counts.useless))
}

#[test]
fn each_segment_is_fetched_by_one() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    let first = ahead(&pool, &owner, 4..8, 0);
    let second = for_reader(&pool, 2..10);
    let turns: Vec<_> = second.iter().map(|claim| (claim.segments.clone(), claim.turn.is_some())).collect();
    assert_eq!(turns, [(2..4, true), (4..8, false), (8..10, true)]);
    assert!(second[1].fetch.wait(&(5..7)).now_or_never().is_none());
    assert!(pool.pieces(OBJECT, 4 * SEGMENT as u32, 1).is_none());
    settle(first);
    assert_eq!(second[1].fetch.wait(&(5..7)).now_or_never(), Some(Ok(vec![bytes_of(5), bytes_of(6)])));
    assert_eq!(pool.pieces(OBJECT, 5 * SEGMENT as u32 - 1, 2).unwrap().concat(), [4, 5]);
    settle(second);
    assert!(pool.pieces(OBJECT, 2 * SEGMENT as u32, 1).is_none(), "that was for him alone");
}

#[test]
fn who_gives_up_leaves_it_to_those_who_wait() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    let first = for_reader(&pool, 0..1);
    let second = ahead(&pool, &owner, 0..1, 0);
    drop(first);
    assert_eq!(second[0].fetch.wait(&(0..1)).now_or_never(), Some(Err(Errno::EAGAIN)));
    assert!(for_reader(&pool, 0..1)[0].turn.is_some(), "it is anybody's turn again");
    assert_eq!((pool.len.load(Relaxed), pool.owners()), (0, 0));
}

#[test]
fn what_was_read_goes() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    settle(ahead(&pool, &owner, 0..4, 0));
    assert_eq!((counts(&pool), pool.owners()), ((4, 0, 0), 1));
    let half = SEGMENT / 2;
    assert_eq!(pool.read(&part(half, SEGMENT)), SEGMENT as u64);
    assert!(pool.pieces(OBJECT, 0, 4 * SEGMENT).is_some(), "of no segment everything was read");
    assert_eq!(pool.read(&part(0, half)), half as u64);
    assert!(pool.pieces(OBJECT, 0, 1).is_none());
    assert_eq!(pool.read(&part(0, 4 * SEGMENT)), 5 * half as u64, "no byte counts twice");
    assert_eq!((counts(&pool), pool.owners(), pool.len.load(Relaxed)), ((4, 4, 0), 0, 0));
}

#[test]
fn what_was_in_vain_is_counted_and_told() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    settle(ahead(&pool, &owner, 0..4, 10));
    settle(ahead(&pool, &owner, 4..8, 20));
    pool.read(&part(0, SEGMENT));
    let under_way = ahead(&pool, &owner, 8..9, 0);
    pool.drop_older(Duration::from_secs(10));
    assert!(!owner.take_useless());
    pool.drop_older(Duration::from_secs(20));
    assert_eq!((counts(&pool), owner.take_useless(), owner.take_useless()), ((8, 1, 3), true, false));
    pool.close(&owner);
    assert_eq!((counts(&pool), pool.owners()), ((8, 1, 7), 1));
    settle(under_way);
    assert_eq!((counts(&pool), pool.owners(), pool.len.load(Relaxed)), ((9, 1, 8), 0, 0));
}

#[test]
fn the_oldest_goes_first() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    (0..4).for_each(|n| settle(ahead(&pool, &owner, n..n + 1, 0)));
    let mut left = 2;
    pool.evict(|| {
        left -= 1;
        left >= 0
    });
    let here: Vec<_> = (0..4).map(|n| pool.pieces(OBJECT, n * SEGMENT as u32, 1).is_some()).collect();
    assert_eq!(here, [false, false, true, true]);
}

/// What one reads in small pieces comes in segments: the rest of one that was fetched for him is kept, if he goes on.
#[test]
fn the_rest_of_what_somebody_fetches_is_kept_for_who_reads_on() {
    let (pool, owner) = (Arc::new(Pool::default()), Arc::new(Owner::default()));
    // One reads 4 KiB in the middle of a segment, and goes on.
    let his = pool.claim(&part(8192, 4096), None, Duration::ZERO);
    assert!(!his[0].turn.as_ref().unwrap().is_ahead());
    let rest = pool.claim(&part(12288, SEGMENT), Some(&owner), Duration::ZERO);
    assert_eq!(rest.iter().map(|claim| claim.turn.is_some()).collect::<Vec<_>>(), [false, true]);
    assert!(his[0].turn.as_ref().unwrap().is_ahead());
    settle(his);
    settle(rest);
    let next = pool.claim(&part(12288 + SEGMENT, 4096), Some(&owner), Duration::ZERO);
    assert!(next[0].turn.is_none());
    for at in (8192..16384 + SEGMENT).step_by(4096) {
        assert!(pool.pieces(OBJECT, at as u32, 4096).is_some(), "{at}");
        pool.read(&part(at, 4096));
    }
    assert_eq!(
        (pool.len.load(Relaxed), pool.counts.useless.load(Relaxed)),
        (0, 0),
        "what nobody wants is not waited for"
    );
}
