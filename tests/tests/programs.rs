//! Real programs on a mount.

use std::{fs, path::Path};

use sluice_tests::{Place, Scratch, TreeOptions, compare_trees, shell};

const EVERYTHING: TreeOptions = TreeOptions { times: true, xattrs: true };

fn assert_same(left: &Path, right: &Path) {
    let difference = compare_trees(left, right, EVERYTHING);
    assert!(difference.is_empty(), "{} and {} differ:\n{difference}", left.display(), right.display());
}

#[test]
fn git_clone_commit_gc_fsck() {
    let (mut place, scratch) = (Place::new(), Scratch::new());
    let script = "
        export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
        git init -q -b main origin && cd origin
        for commit in 1 2 3 4 5; do
            for i in $(seq 100); do mkdir -p d$((i % 7)); seq $commit $((i * 20)) > d$((i % 7))/f$i; done
            git add -A && git commit -q -m $commit
        done";
    shell(scratch.path(), script);
    let clone = format!("git clone -q --no-local {}/origin clone", scratch.path().display());
    shell(place.root(), &clone);
    shell(&place.path("clone"), "git fsck --full --strict && test -z \"$(git status --porcelain)\"");
    let more = "
        git config user.name t; git config user.email t@t; git config gc.autoDetach false
        git checkout -q -b work && sed -i s/1/one/ d*/* && git commit -qam change && git gc -q --aggressive && git checkout -q main";
    shell(&place.path("clone"), more);
    place.remount();
    shell(
        &place.path("clone"),
        "git fsck --full --strict && test -z \"$(git status --porcelain)\" && git diff --quiet origin/main",
    );
}

#[test]
fn a_c_program_of_300_files() {
    let place = Place::new();
    let script = r#"
        for i in $(seq 300); do echo "int f$i(void) { return $i; }" > f$i.c; done
        { for i in $(seq 300); do echo "int f$i(void);"; done
          echo '#include <stdio.h>'; echo 'int main(void) { long s = 0;'
          for i in $(seq 300); do echo "s += f$i();"; done
          echo 'printf("%ld\n", s); return 0; }'; } > main.c
        printf 'OBJECTS := $(patsubst %%.c,%%.o,$(wildcard *.c))\nsum: $(OBJECTS)\n\t$(CC) -o $@ $^\n%%.o: %%.c\n\t@$(CC) -O0 -c -o $@ $<\n' > Makefile
        make -s -j2
        test "$(./sum)" = 45150
        make -q"#;
    shell(place.root(), script);
}

#[test]
fn sqlite_in_both_journal_modes() {
    let mut place = Place::new();
    for mode in ["delete", "wal"] {
        let script = format!(
            "{{ echo 'pragma journal_mode={mode}; create table t(id integer primary key, x blob);'
               for i in $(seq 200); do
                   echo 'begin; insert into t(x) select randomblob(300) from generate_series(1, 20); commit;'
                   echo \"update t set x = randomblob(1000) where id % 97 = $i % 97;\"
               done
               echo 'delete from t where id % 10 = 0; vacuum;'; }} | sqlite3 {mode}.db > out
             test \"$(sqlite3 {mode}.db 'pragma integrity_check')\" = ok"
        );
        shell(place.root(), &script);
    }
    place.remount();
    for mode in ["delete", "wal"] {
        let check =
            format!("test \"$(sqlite3 {mode}.db 'pragma integrity_check; select count(*) from t')\" = $'ok\\n3600'");
        shell(place.root(), &check);
    }
}

#[test]
fn pip_install_into_a_virtual_environment() {
    let place = Place::new();
    shell(
        place.root(),
        "python3 -m venv env && env/bin/pip install -q --no-cache-dir six && env/bin/python -c 'import six; print(six.__version__)'",
    );
}

#[test]
fn tar_of_10000_files_there_and_back() {
    let (mut place, scratch) = (Place::new(), Scratch::new());
    let make = "
        import os, random
        random.seed(1)
        for i in range(10000):
            d = f'src/{i % 20}/{i % 7}'
            os.makedirs(d, exist_ok=True)
            with open(f'{d}/{i}', 'wb') as f: f.write(random.randbytes(random.choice([0, 10, 1000, 5000, 40000])))
            os.chmod(f'{d}/{i}', random.choice([0o600, 0o644, 0o755]))";
    let make = make.replace("\n        ", "\n");
    shell(scratch.path(), &format!("python3 - <<'EOF'\n{make}\nEOF"));
    let (root, local) = (place.root().display().to_string(), scratch.path().display().to_string());
    shell(scratch.path(), &format!("tar --format=posix -c src | tar -x -C {root}"));
    place.remount();
    assert_same(&scratch.path().join("src"), &place.path("src"));
    shell(
        scratch.path(),
        &format!(
            "tar --format=posix -c -C {root} src > {root}/all.tar && mkdir back && tar -x -C back -f {root}/all.tar"
        ),
    );
    assert_same(&scratch.path().join("src"), &Path::new(&local).join("back/src"));
    shell(place.root(), "rm -r src all.tar && test -z \"$(ls -A)\"");
}

#[test]
fn rsync_there_and_back() {
    let (mut place, scratch) = (Place::new(), Scratch::new());
    let make = "
        mkdir -p src/a/b src/empty && cd src
        seq 100000 > a/large && echo small > a/b/small && : > a/nothing
        ln a/large a/b/hard && ln a/large hard2 && ln -s a/large soft && ln -s /nowhere dangling
        truncate -s 10M sparse && printf end >> sparse
        mkfifo fifo
        setfattr -n user.one -v 1 a/large && setfattr -n user.dir -v d a && setfattr -n trusted.two -v 2 a/b/small
        chown 1000:2000 a/b/small && chmod 4755 a/b/small && chmod 1777 empty
        # rsync leaves a time alone that differs by less than a second: start from an old one.
        find . -depth -exec touch -h -d '2020-05-06 07:08:09.123456789' {} +
        touch -d '1965-03-04 05:06:07.891234567' a/nothing && touch -h -d '2110-01-01 00:00:00.1' soft
        touch -d '2001-02-03' a/b";
    shell(scratch.path(), make);
    let (root, local) = (place.root().display().to_string(), scratch.path().display().to_string());
    shell(scratch.path(), &format!("rsync -aHX src {root}/"));
    place.remount();
    assert_same(&scratch.path().join("src"), &place.path("src"));
    // A second run finds nothing to do: times and sizes came through exactly.
    let again = shell(scratch.path(), &format!("rsync -aHX --itemize-changes src {root}/"));
    assert_eq!(again.stdout, "", "{}", again.stdout);
    shell(scratch.path(), &format!("rsync -aHX {root}/src back/"));
    assert_same(&scratch.path().join("src"), &Path::new(&local).join("back/src"));
    fs::write(place.path("src/a/large"), b"changed").unwrap();
    shell(scratch.path(), &format!("rsync -aHX --inplace --checksum src {root}/"));
    assert_same(&scratch.path().join("src"), &place.path("src"));
}
