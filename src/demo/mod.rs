//! The demo: a gate before a store in memory, all in one process. Its table is in a folder that is removed at the
//! end.
//!
//! - [`store`]: the store. [`story`]: the split brain, played.

pub mod store;
pub mod story;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::{
    app::{self, Running},
    clock::Clock,
    config::{Fault, Faults, Settings},
    table::open,
};

/// A running demo.
pub struct Demo {
    pub running: Running,
    pub store: SocketAddr,
    folder: Folder,
}

/// A folder that is removed at the end of the demo.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a store and a gate before it: on the usual ports, or on free ports if those are in use.
///
/// # Errors
/// Everything that prevents the start.
pub async fn start() -> Result<Demo, Faults> {
    let fault = |key: &str, what: String| Faults(vec![Fault::new(key, what)]);
    let folder = std::env::temp_dir().join(format!("fencegate-demo-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).map_err(|error| fault("demo", format!("{}: {error}", folder.display())))?;
    let folder = Folder(folder);
    let store = store::start().await.map_err(|error| fault("demo", format!("no store: {error}")))?;
    let mut settings = Settings::default();
    settings.table.path = folder.0.join("data");
    settings.store.url = format!("http://{store}");
    open::init(&settings.table.path).map_err(|error| fault("demo", error.to_string()))?;
    let ports = match app::prepare(&settings, vec![]) {
        Ok(ports) => ports,
        Err(_taken) => {
            for listen in [&mut settings.gate.listen, &mut settings.api.listen, &mut settings.ops.listen] {
                listen.set_port(0);
            }
            app::prepare(&settings, vec![])?
        }
    };
    let running = app::start(&settings, Clock::machine(), ports).await?;
    Ok(Demo { running, store, folder })
}

impl Demo {
    /// Commands to try, as lines to copy.
    #[must_use]
    pub fn lines_to_try(&self) -> [String; 5] {
        let (gate, api) = (self.running.listens, self.running.api);
        let lease = r#"{"object_id":"users","holder_id":"me","ttl_ms":600000}"#;
        [
            format!(
                "TOKEN=$(curl -s http://{api}/v1/leases --json '{lease}' | sed 's/.*\"fence_token\":\"\\([^\"]*\\).*/\\1/')"
            ),
            format!("curl -i -X PUT http://{gate}/users/1 -H \"Fence-Token: $TOKEN\" -d Ada"),
            format!("curl -i -X PUT http://{gate}/users/1 -d Eve"),
            format!("curl -s http://{gate}/users/1"),
            format!("curl -s http://{api}/v1/receipts"),
        ]
    }

    /// Stops everything.
    pub async fn stop(self) {
        // The demo keeps nothing, so a fault at the stop does not matter.
        let _ = self.running.stop(Duration::from_secs(5)).await;
        drop(self.folder);
    }
}
