//! Pools some of whose features are disabled (docs/zfs.md).
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Scratch, demo};

const UPGRADE: &str = "pool must be upgraded: it needs the feature";

fn state(scratch: &Scratch, pool: &str, feature: &str) -> String {
    scratch.ok(&format!("pool get -Ho value feature@{feature} {pool}")).trim().to_owned()
}

#[test]
fn a_pool_without_features_refuses_what_needs_them() {
    let scratch = Scratch::with_home();
    scratch.ok("pool create -d old");
    for feature in ["bookmarks", "lz4_compress", "large_blocks", "extensible_dataset"] {
        assert_eq!(state(&scratch, "old", feature), "disabled");
    }
    assert_eq!(state(&scratch, "tank", "lz4_compress"), "active");
    scratch.ok("create -o compression=gzip old/a");
    for line in [
        "set compression=lz4 old/a",
        "set compression=zstd-3 old/a",
        "set recordsize=1M old/a",
        "set checksum=blake3 old/a",
        "set filesystem_limit=5 old/a",
        "create -o dnodesize=auto old/b",
        "create -V 1M -b 1M old/v",
    ] {
        assert!(scratch.fails(1, line).contains(UPGRADE), "{line}");
    }
    scratch.ok("set recordsize=64K old/a");
    scratch.ok("snapshot old/a@s");
    let refused = scratch.fails(1, "bookmark old/a@s old/a#b");
    assert!(
        refused.contains("feature bookmarks, which 'zpool set feature@bookmarks=enabled old' enables"),
        "{refused}"
    );

    // Streams that were sent compressed, or are to be resumed, need more than plain ones.
    let compressed = scratch.to_file("send -c tank/home@tuesday", "compressed.zstream");
    let plain = scratch.to_file("send tank/home@tuesday", "plain.zstream");
    let said = scratch.run_with_input("receive old/home", &compressed);
    assert!(said.code == 1 && said.err.contains("feature lz4_compress"), "{said:?}");
    let said = scratch.run_with_input("receive -s old/home", &plain);
    assert!(said.code == 1 && said.err.contains("feature extensible_dataset"), "{said:?}");
    scratch.receive("receive old/home", &plain);
    // Its compressed streams need no lz4, so another pool without that feature receives them.
    let again = scratch.to_file("send -c old/home@tuesday", "again.zstream");
    scratch.receive("receive old/copy", &again);
    scratch.ok("check old");
}

#[test]
fn features_are_chosen_when_a_pool_is_made_and_enabled_later() {
    let scratch = Scratch::new();
    scratch.ok("pool create -d -o feature@bookmarks=enabled some");
    scratch.ok("pool create -o feature@large_blocks=disabled most");
    scratch.ok("pool create -o version=28 before");
    scratch.ok("pool create all");
    assert_eq!(
        (state(&scratch, "some", "bookmarks"), state(&scratch, "some", "longname")),
        ("enabled".into(), "disabled".into())
    );
    assert_eq!(
        (state(&scratch, "most", "large_blocks"), state(&scratch, "most", "longname")),
        ("disabled".into(), "enabled".into())
    );
    assert_eq!(state(&scratch, "before", "lz4_compress"), "disabled");
    let late = scratch.fails(1, "pool set feature@longname=disabled all");
    assert!(late.contains("can only be set to 'disabled' at creation time"), "{late}");
    assert!(scratch.fails(1, "pool set feature@longname=active all").contains("'enabled' or 'disabled'"));
    // What a feature needs is enabled with it.
    scratch.ok("pool set feature@longname=enabled before");
    assert_eq!(state(&scratch, "before", "extensible_dataset"), "active");
    assert_eq!(state(&scratch, "before", "bookmarks"), "disabled");
    let listed = scratch.ok("zpool upgrade");
    assert!(listed.contains("\nmost\n      large_blocks\n") && !listed.contains("\nall\n"), "{listed}");
    assert!(scratch.ok("zpool upgrade most").contains("Enabled in 'most':\n  large_blocks\n"));
    assert!(scratch.ok("zpool upgrade most").contains("already has all"));
    scratch.ok("zpool upgrade -a");
    assert!(scratch.ok("zpool upgrade").contains("Every pool has all of them."));
    scratch.ok("create some/a");
    scratch.ok("set recordsize=1M some/a");
}

#[test]
fn a_feature_is_active_while_something_uses_it() {
    let scratch = Scratch::with_pool();
    for (feature, line) in [
        ("zstd_compress", "create -o compression=zstd-9 tank/x"),
        ("large_blocks", "create -o recordsize=1M tank/x"),
        ("blake3", "create -o checksum=blake3 tank/x"),
        ("filesystem_limits", "create -o filesystem_limit=3 tank/x"),
    ] {
        assert_eq!(state(&scratch, "tank", feature), "enabled", "{feature}");
        scratch.ok(line);
        assert_eq!(state(&scratch, "tank", feature), "active", "{feature}");
        assert_eq!(scratch.ok(&format!("pool list -Ho feature@{feature}")), "active\n");
        scratch.ok("destroy tank/x");
        assert_eq!(state(&scratch, "tank", feature), "enabled", "{feature}");
    }
    scratch.receive("receive tank/home", &demo("full.zstream"));
    let snapshot = scratch.ok("list -Ho name -t snapshot tank/home");
    assert_eq!(state(&scratch, "tank", "bookmarks"), "enabled");
    scratch.ok(&format!("bookmark {} tank/home#b", snapshot.trim()));
    assert_eq!(state(&scratch, "tank", "bookmarks"), "active");
}

#[test]
fn properties_of_a_stream_that_need_a_disabled_feature_are_left_out() {
    let scratch = Scratch::with_pool();
    scratch.ok("create -o recordsize=1M -o com.example:kept=yes tank/a");
    scratch.ok("snapshot tank/a@s");
    let stream = scratch.to_file("send -p tank/a@s", "properties.zstream");
    scratch.ok("pool create -d old");
    let said = scratch.run_with_input("receive old/a", &stream);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("property recordsize is not taken"), "{said:?}");
    assert_eq!(scratch.ok("get -Ho value recordsize,com.example:kept old/a"), "128K\nyes\n");
}
