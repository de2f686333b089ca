"""What every nginx here has in common: the store and the plain proxy are both one."""
import os

# Connections live as long as the benchmark; nginx would close each after 1,000 requests.
FRAME = """\
{user}
daemon off;
worker_processes 1;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log warn;
{main}
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    default_type text/plain;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    # nginx makes all of these folders, used or not; without these settings it takes the system's.
    client_body_temp_path {folder}/{name}-body;
    proxy_temp_path {folder}/{name}-proxy;
    fastcgi_temp_path {folder}/{name}-fastcgi;
    uwsgi_temp_path {folder}/{name}-uwsgi;
    scgi_temp_path {folder}/{name}-scgi;
{http}
}}
"""


PROXY = """\
    upstream store {{
        server 127.0.0.1:{store_port};
        keepalive 256;
        keepalive_requests 1000000000;
        keepalive_timeout 3600s;
    }}
    server {{
        listen 127.0.0.1:{port}{listen};
        {server}
        location / {{
            {location}
            proxy_pass http://store;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
"""


def proxy(port, store_port, listen="", server="", location=""):
    """What goes into the http block of a plain proxy, with more words after `listen` and more lines inside."""
    return PROXY.format(port=port, store_port=store_port, listen=listen, server=server, location=location)


def start(processes, name, core, port, http, modules=(), connections=4096):
    """Writes NAME.conf with `http` inside its http block, starts nginx with it, waits for its port."""
    # As root, nginx's worker would change to a user who may not enter the temporary folder.
    user = "user root;" if os.geteuid() == 0 else ""
    loaded = "\n".join(f"load_module /usr/lib/nginx/modules/{each}.so;" for each in modules)
    config = processes.folder / f"{name}.conf"
    config.write_text(FRAME.format(user=user, folder=processes.folder, name=name, http=http, main=loaded,
                                   connections=connections))
    processes.start(name, core, ["nginx", "-e", processes.folder / f"{name}.log", "-c", config])
    processes.wait_for_port(name, port)
