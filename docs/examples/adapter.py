#!/usr/bin/env python3
"""An adapter for consist-operator over HTTP in Python without dependencies: it configures HAProxy.

    python3 adapter.py --listen 127.0.0.1:9000 [--delay SECONDS]

Its parameters locate HAProxy's Runtime API and backend: {"runtime": "127.0.0.1:9999", "backend": "web", "port": 8080}.
It keeps only the latest generation and enabled addresses of each employer: HAProxy stores the members.
With --delay, a drain takes effect only after that time, as with a slow control plane.
"""

import argparse
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAINTENANCE, DRAIN, RUNNING = 0x01 | 0x02 | 0x20 | 0x40, 0x08 | 0x10, 2
DELAY = 0.0
applied = {}  # employer UID -> latest generation, and addresses of its enabled members
pending_drains = {}  # (employer UID, slot, address) -> timer of the delayed drain
lock = threading.Lock()


class InvalidRequest(Exception):
    """The request is invalid (HTTP 400)."""


def send_command(params, command):
    """Sends a command to the Runtime API and returns its response."""
    host, port = params["runtime"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(command.encode() + b"\n")
        response = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    if command.startswith("show") and not response.endswith("\n\n"):
        raise OSError("incomplete response")
    return response


def slots(params):
    """Returns every server of the backend: name, address, state, and number of sessions."""
    states = send_command(params, f"show servers state {params['backend']}").splitlines()
    columns = states[1].lstrip("# ").split()
    servers = [dict(zip(columns, line.split())) for line in states[2:] if line.strip()]
    if not servers:
        raise InvalidRequest(f"HAProxy backend {params['backend']} has no servers")
    stat = send_command(params, f"show stat {servers[0]['be_id']} 4 -1").splitlines()
    names = stat[0].lstrip("# ").split(",")
    rows = [dict(zip(names, line.split(","))) for line in stat[1:] if line.strip()]
    sessions = {row["svname"]: int(row["scur"]) for row in rows}
    for server in servers:
        server["sessions"] = sessions[server["srv_name"]]
        server["admin"] = int(server["srv_admin_state"])
        server["up"] = int(server["srv_op_state"]) == RUNNING
    return servers


def has_address(slot, member):
    return slot["srv_addr"] in member.get("addresses", [])


def has_endpoint(slot, member, params):
    return has_address(slot, member) and int(slot["srv_port"]) == params["port"]


def state(slot):
    if slot["admin"] & MAINTENANCE and not slot["sessions"]:
        return {"state": "Absent"}
    if slot["admin"] & (MAINTENANCE | DRAIN):
        return {"state": "Draining", "inFlight": slot["sessions"]}
    return {"state": "Serving" if slot["up"] else "Unhealthy"}


def observe(employer, params, request):
    all_slots = slots(params)
    observed = []
    for member in request.get("members", []):
        # Match any port, because the parameters may have changed.
        states = [state(slot) for slot in all_slots if has_address(slot, member)]
        order = ["Serving", "Unhealthy", "Draining", "Absent"]
        merged = dict(min(states, key=lambda s: order.index(s["state"]), default={"state": "Absent"}))
        if merged["state"] == "Draining":
            merged["inFlight"] = sum(s.get("inFlight", 0) for s in states)
        observed.append({"uid": member["uid"], **merged})
    return {"members": observed}


def apply(employer, params, request):
    with lock:
        return apply_members(employer, params, request["generation"], request.get("members", []))


def apply_members(employer, params, generation, desired):
    if generation < applied.get(employer["uid"], (0, []))[0]:
        return {"outcomes": []}  # a delayed duplicate of an older request
    members = [(item["member"], item["want"]) for item in desired]
    enabled = [member for member, want in members if want == "Serve" and member.get("addresses")]
    applied[employer["uid"]] = generation, [address for member in enabled for address in member["addresses"]]
    all_slots = slots(params)
    free = [s for s in all_slots if s["admin"] & MAINTENANCE and not s["sessions"]
            and not any(has_endpoint(s, member, params) for member, _ in members)]
    outcomes = []
    for member in enabled:
        slot = next((s for s in all_slots if has_endpoint(s, member, params)), None)
        if slot is None and not free:
            outcomes.append({"uid": member["uid"], "outcome": "Invalid", "message": "no free slot"})
            continue
        if slot is None:
            slot = free.pop()
            target = f"addr {member['addresses'][0]} port {params['port']}"
            send_command(params, f"set server {params['backend']}/{slot['srv_name']} {target}")
            slot["srv_addr"], slot["srv_port"] = member["addresses"][0], params["port"]
        if slot["admin"] & (MAINTENANCE | DRAIN):
            send_command(params, f"set server {params['backend']}/{slot['srv_name']} state ready")
    for slot in all_slots:
        key = employer["uid"], slot["srv_name"], slot["srv_addr"]
        if not any(has_endpoint(slot, member, params) for member in enabled):
            drain(params, slot, key)
        elif key in pending_drains:
            pending_drains.pop(key).cancel()
    return {"outcomes": outcomes}


def drain(params, slot, key):
    """Drains a slot, and disables it once it has no sessions."""
    if slot["admin"] & MAINTENANCE:
        return
    if slot["admin"] & DRAIN:
        if not slot["sessions"]:
            send_command(params, f"set server {params['backend']}/{slot['srv_name']} state maint")
    elif not DELAY:
        send_command(params, f"set server {params['backend']}/{slot['srv_name']} state drain")
    elif key not in pending_drains:
        pending_drains[key] = threading.Timer(DELAY, drain_delayed, (params, key))
        pending_drains[key].start()


def drain_delayed(params, key):
    """Drains a slot unless its address was enabled again or reused: another member must not be drained."""
    uid, name, address = key
    with lock:
        if pending_drains.pop(key, None) and address not in applied[uid][1]:
            for slot in slots(params):
                if slot["srv_name"] == name and slot["srv_addr"] == address and not slot["admin"] & MAINTENANCE:
                    send_command(params, f"set server {params['backend']}/{name} state drain")


def forget(employer, params, request):
    generation = applied.get(employer["uid"], (0, []))[0]
    apply(employer, params, {"generation": generation, "members": []})
    return {}


class Handler(BaseHTTPRequestHandler):
    verbs = {"/v1/observe": observe, "/v1/apply": apply, "/v1/forget": forget}

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        try:
            self.respond(200, json.dumps(self.handle_call(request)))
        except (InvalidRequest, KeyError, ValueError) as error:
            self.respond(400, f"{type(error).__name__}: {error}")
        except OSError as error:
            self.respond(503, f"HAProxy: {error}")

    def handle_call(self, request):
        if self.path == "/v1/handshake":
            if "v1" not in request.get("versions", []):
                raise InvalidRequest("unsupported protocol versions; this adapter supports v1")
            return {"version": "v1", "name": "haproxy in Python"}
        employer = request["employer"]
        return self.verbs[self.path](employer, json.loads(employer["params"]), request)

    def respond(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--listen", default="127.0.0.1:9000")
    arguments.add_argument("--delay", type=float, default=0)
    arguments = arguments.parse_args()
    DELAY = arguments.delay
    host, port = arguments.listen.rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Handler)
    server.serve_forever()
