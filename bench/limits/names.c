// (parent, name) -> inode, by open addressing. Names are never forgotten, only marked: the table must hold every name
// of a run, and mdops uses a few ten thousand.
#include "fuse_limit.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1 << 20 };

static struct name *slots;
static uint64_t next_inode = 10; // 1 is the root, 2 the file "f"
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void names_init(void) {
    slots = calloc(SLOTS, sizeof *slots);
    if (!slots) die("calloc");
}

// The slot of the name, or the free one where it belongs. The caller holds the lock.
static struct name *slot_of(uint64_t parent, const char *text) {
    uint64_t hash = parent * 0x9E3779B97F4A7C15ull;
    for (const char *c = text; *c; c++) hash = (hash ^ *c) * 0x100000001b3ull; // FNV-1a
    hash ^= hash >> 29;
    for (;; hash++) {
        struct name *name = &slots[hash & (SLOTS - 1)];
        if (!name->inode || (name->parent == parent && !strcmp(name->text, text))) return name;
    }
}

uint64_t names_create(uint64_t parent, const char *text, bool is_dir) {
    pthread_mutex_lock(&lock);
    struct name *name = slot_of(parent, text);
    if (!name->inode) name->inode = next_inode++;
    name->parent = parent;
    name->is_dir = is_dir;
    name->exists = true;
    strncpy(name->text, text, sizeof name->text - 1);
    uint64_t inode = name->inode;
    pthread_mutex_unlock(&lock);
    return inode;
}

struct name names_find(uint64_t parent, const char *text) {
    pthread_mutex_lock(&lock);
    struct name name = *slot_of(parent, text);
    pthread_mutex_unlock(&lock);
    return name;
}

void names_remove(uint64_t parent, const char *text) {
    pthread_mutex_lock(&lock);
    slot_of(parent, text)->exists = false;
    pthread_mutex_unlock(&lock);
}
