use super::*;
use crate::request::{ReadRequest, ReceiveRequest, SendRequest};

fn subtree(role: Role) -> Access {
    Access::to_subtree(Subtree::new("tank/a").unwrap(), role)
}

#[test]
fn a_subtree_is_a_dataset_and_what_is_below_it() {
    let access = subtree(Role::Full);
    for name in ["tank/a", "tank/a/b", "tank/a@s", "tank/a/b#m"] {
        assert!(access.name(name).is_ok(), "{name}");
    }
    for name in ["tank", "tank/ab", "tank/b", "tank/a.", "tank@s", "tank/ab@s", "other/a"] {
        let failure = access.name(name).unwrap_err();
        assert_eq!(failure.message, format!("'{name}': dataset does not exist"));
    }
    assert_eq!(access.name("tank#m").unwrap_err().message, "bookmark 'tank#m' does not exist");
    for name in
        ["tank/a/../b", "tank/a//b", "/tank/a", "tank/a/", "tank/a\n", &format!("tank/a/{}", "n".repeat(300))]
    {
        assert!(access.name(name).is_err(), "{name}");
    }
    assert!(access.dataset("tank/a@s").is_err(), "a snapshot is no dataset");
    assert!(access.is_above("tank") && !access.is_above("tank/a") && !access.is_above("tan"));
    assert!(!Access::to_pool(Role::Full).is_above("tank"));
}

fn send() -> Request {
    let send = SendRequest { to: "tank/a@s".to_owned(), ..SendRequest::default() };
    Request::Send(send)
}

fn receive(force: bool) -> Request {
    Request::Receive(ReceiveRequest { target: "tank/a".to_owned(), force, ..ReceiveRequest::default() })
}

#[test]
fn each_role_has_its_requests() {
    let read = Request::Read(ReadRequest { snapshot: "tank/a@s".to_owned(), since: None });
    let blocks = Request::Blocks { dataset: "tank/a".to_owned() };
    let mend = Request::Mend { dataset: "tank/a".to_owned() };
    let sizes = Request::Sizes { sends: Vec::new() };
    for (role, reads, writes, forces) in [
        (Role::Full, true, true, true),
        (Role::Send, true, false, false),
        (Role::Receive, false, true, true),
        (Role::Append, false, true, false),
    ] {
        let access = subtree(role);
        for request in [&send(), &read, &blocks, &sizes] {
            assert_eq!(access.check_request(request).is_ok(), reads, "{role:?}: {request:?}");
        }
        assert_eq!(access.check_request(&receive(false)).is_ok(), writes, "{role:?}");
        assert_eq!(access.check_request(&mend).is_ok(), writes, "{role:?}");
        assert_eq!(access.check_request(&receive(true)).is_ok(), forces, "{role:?}");
    }
    let refused = subtree(Role::Append).check_request(&receive(true)).unwrap_err();
    assert_eq!(refused.kind, FailureKind::NotAllowed);
    assert_eq!(
        refused.message,
        "to receive with --force is not allowed here: this is 'serve sync --append-only'"
    );
}

#[test]
fn each_role_has_its_actions() {
    let text = str::to_owned;
    let mark = "tank/a@snowmelt-sync_2026-01-02_03:04:05.678";
    let hold = |tag: &str| Action::Hold { tag: text(tag), snapshot: text("tank/a@s") };
    let release = |tag: &str| Action::Release { tag: text(tag), snapshot: text("tank/a@s") };
    let destroy = |name: &str| Action::DestroySnapshot { name: text(name) };
    let bookmark = |name: &str| Action::Bookmark { snapshot: text("tank/a@s"), bookmark: text(name) };
    let rows = [
        // What; whether Send, Receive and Append have it.
        (Action::Snapshot { names: vec![text(mark)] }, [true, false, false]),
        (Action::Snapshot { names: vec![text(mark), text("tank/a@mine")] }, [false; 3]),
        (destroy(mark), [true, true, false]),
        (destroy("tank/a@mine"), [false; 3]),
        (destroy("tank/a"), [false; 3]),
        (bookmark("tank/a#snowmelt-sync_x"), [true, false, false]),
        (bookmark("tank/a#mine"), [false; 3]),
        (Action::DestroyBookmark { name: text("tank/a#snowmelt-sync_x") }, [true, false, false]),
        (Action::DestroyBookmark { name: text("tank/a#mine") }, [false; 3]),
        (hold("snowmelt-sync"), [false, true, true]),
        (hold("snowmelt-sync:home"), [false, true, true]),
        (hold("snowmelt-syncs"), [false; 3]),
        (release("snowmelt-sync"), [false, true, true]),
        (release("keep"), [false; 3]),
        (Action::Rename { from: text("tank/a/b"), to: text("tank/a/c") }, [false, true, false]),
        (Action::Rename { from: text("tank/a@b"), to: text("tank/a@c") }, [false; 3]),
        (Action::CreateParents { name: text("tank/a/b") }, [false, true, true]),
        (Action::AbortReceive { name: text("tank/a/b") }, [false, true, true]),
        (Action::Note { line: text("x") }, [true; 3]),
    ];
    for (action, expected) in rows {
        assert!(subtree(Role::Full).check_action(&action).is_ok(), "{action:?}");
        for (role, expected) in [Role::Send, Role::Receive, Role::Append].into_iter().zip(expected) {
            assert_eq!(subtree(role).check_action(&action).is_ok(), expected, "{role:?}: {action:?}");
        }
    }
}

#[test]
fn failures_name_nothing_outside() {
    let access = subtree(Role::Full);
    let clones = |clones: &[&str]| DatasetError::HasClones {
        name: "tank/a@s".to_owned(),
        clones: clones.iter().map(|name| (*name).to_owned()).collect(),
    };
    let told = |error| access.conceal(error).to_string();
    assert_eq!(told(clones(&["tank/secret"])), "'tank/a@s': dataset is busy");
    let some = told(clones(&["tank/secret", "tank/a/c"]));
    assert!(some.contains("tank/a/c") && !some.contains("secret"), "{some}");
    let quota = snowmelt_dataset::Quota::Quota;
    let full = DatasetError::QuotaExceeded { name: "tank".to_owned(), quota, limit: 5, used: 5 };
    assert_eq!(told(full), "'tank/a': out of space");
    assert!(Access::to_pool(Role::Full).conceal(clones(&["tank/secret"])).to_string().contains("secret"));
}

#[test]
fn properties_are_filtered_and_checked() {
    let access = subtree(Role::Full);
    let asked = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let (taken, left_out) = access
        .properties(&asked(&[("compression", "lz4"), ("mountpoint", "/etc"), ("a\x1b:b", "1")]))
        .unwrap();
    assert_eq!(taken, asked(&[("compression", "lz4")]));
    assert_eq!(left_out, ["mountpoint", "a\\033:b"]);
    for (name, value) in [("compression", "best"), ("recordsize", "5"), ("a:b", &*"x".repeat(9000))] {
        assert!(access.properties(&asked(&[(name, value)])).is_err(), "{name}");
    }
    let all = subtree(Role::Full).with_properties(PeerProperties::all());
    for (name, value) in [
        ("mountpoint", "../../x"),
        ("mountpoint", "/x\ny"),
        ("mountpoint", "/x/../etc"),
        ("quota", "zzz"),
        ("readonly", "maybe"),
        ("used", "5"),
        ("keylocation", "file:///etc/shadow"),
        ("no-such", "1"),
    ] {
        assert!(all.properties(&asked(&[(name, value)])).is_err(), "{name}={value}");
    }
    assert_eq!(all.properties(&asked(&[("quota", "0")])).unwrap().0, asked(&[("quota", "0")]));
    assert_eq!(access.excluded(&["quota".to_owned(), "atime".to_owned()]), ["atime"]);
}

#[test]
fn notes_are_one_short_line_with_a_mark() {
    let line = note(&format!("forged \x1b[31m\nhistory {}", "x".repeat(5000)));
    assert!(line.starts_with("sync client: forged \\033[31m\\nhistory xx"), "{line}");
    assert!(line.len() < 1100 && !line.contains(char::is_control));
}
