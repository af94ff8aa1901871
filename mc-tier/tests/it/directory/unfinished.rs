//! Files that their writers did not finish.

use std::fs::File;
use std::time::{Duration, SystemTime};

use mc_tier::Tier;

use super::common::{object, open, scan_all, unfinished, with_object};

#[test]
fn unfinished_files_are_not_read_and_are_removed_after_an_hour() {
    let (root, tier, id) = with_object();
    let file = |name: &str, modified: SystemTime| {
        let path = tier.directory().join("tmp").join(name);
        File::create(&path).unwrap().set_modified(modified).unwrap();
        path
    };
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    file("abandoned", now - 2 * hour);
    let future = file("written before a clock jumped back", now + 2 * hour);
    let young = file("written now", now);
    assert_eq!(tier.clean_up().unwrap(), 1);
    assert_eq!(unfinished(&tier).len(), 2, "their writers may be at work");
    assert_eq!(scan_all(&tier).objects.len(), 1);
    assert_eq!(tier.usage().unwrap().objects, 1);
    File::options().write(true).open(young).unwrap().set_modified(now - 2 * hour).unwrap();
    open(root.path());
    assert_eq!(unfinished(&tier), [future], "opening a tier cleans up");
    assert_eq!(tier.get(&id).unwrap(), Some(object(&id, 5000)));
}
