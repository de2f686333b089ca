//! Fills a data folder with a table of many objects, for `make bench`:
//! `cargo run --release --example fill -- FOLDER OBJECTS`

use std::{path::Path, process::ExitCode};

use fencegate::{
    fence::{Fence, Incarnation, ObjectId, Record},
    table::{
        Batch, Table,
        codec::{Key, encode_record},
        data_folder, open,
        rocks::RocksTable,
    },
};

const CHUNK: u64 = 20_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, objects] = arguments.as_slice() else {
        eprintln!("fill FOLDER OBJECTS");
        return ExitCode::from(2);
    };
    let folder = Path::new(folder);
    let objects: u64 = objects.parse().expect("a number of objects");
    open::init(folder).expect("a new table");
    let (table, _) = RocksTable::open(&data_folder::table_folder(folder)).expect("the table");
    for begin in (0..objects).step_by(usize::try_from(CHUNK).expect("small")) {
        let mut batch = Batch::default();
        for n in begin..objects.min(begin + CHUNK) {
            let object = ObjectId::new(&format!("/tenants/{}/objects/{n}", n % 1_000)).expect("an id");
            let mut record = Record::unknown(object.clone(), Incarnation::default());
            record.fence = Fence::new(1);
            batch.put(&Key::Record(object), encode_record(&record, 1));
        }
        table.commit(batch).expect("a commit");
        eprint!("\r{begin} objects");
    }
    table.flush().expect("a flush");
    eprintln!("\r{objects} objects in {}", folder.display());
    ExitCode::SUCCESS
}
