"""What every nginx here has in common: the store and the plain proxy are both one."""
import os

# Connections live as long as the benchmark; nginx would close each after 1,000 requests.
FRAME = """\
{user}
daemon off;
worker_processes 1;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    default_type text/plain;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    # nginx makes all of these folders, used or not, and takes the system's unless told.
    client_body_temp_path {folder}/{name}-body;
    proxy_temp_path {folder}/{name}-proxy;
    fastcgi_temp_path {folder}/{name}-fastcgi;
    uwsgi_temp_path {folder}/{name}-uwsgi;
    scgi_temp_path {folder}/{name}-scgi;
{http}
}}
"""


def start(processes, name, core, port, http):
    """Writes NAME.conf with `http` inside its http block, starts nginx with it, waits for its port."""
    # As root, nginx's worker would change to a user who may not enter the temporary folder.
    user = "user root;" if os.geteuid() == 0 else ""
    config = processes.folder / f"{name}.conf"
    config.write_text(FRAME.format(user=user, folder=processes.folder, name=name, http=http))
    processes.start(name, core, ["nginx", "-e", processes.folder / f"{name}.log", "-c", config])
    processes.wait_for_port(name, port)
