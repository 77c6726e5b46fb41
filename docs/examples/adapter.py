#!/usr/bin/env python3
"""An adapter for consist-operator over HTTP in Python without dependencies: it configures HAProxy.

    python3 adapter.py --listen 127.0.0.1:9000 [--delay SECONDS]

Its parameters locate HAProxy's Runtime API and backend: {"runtime": "127.0.0.1:9999", "backend": "web", "port": 8080}.
It keeps only the generations of the requests: HAProxy itself stores the members. With --delay, a drain
takes effect only after that time, as with a slow control plane.
"""

import argparse
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAINTENANCE, DRAIN, RUNNING = 0x01 | 0x02 | 0x20 | 0x40, 0x08 | 0x10, 2
DELAY = 0.0
heard = {}  # employer's UID -> the greatest generation, and the addresses of the enabled members
leaving = {}  # employer's UID, slot, and address -> the timer of the pending drain
busy = threading.Lock()


class Refused(Exception):
    """The request is invalid (HTTP 400)."""


def ask(params, command):
    host, port = params["runtime"].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(command.encode() + b"\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    if command.startswith("show") and not answer.endswith("\n\n"):
        raise OSError("its answer was cut off")
    return answer


def slots(params):
    """Returns every server of the backend: name, address, state, and number of sessions."""
    states = ask(params, f"show servers state {params['backend']}").splitlines()
    columns = states[1].lstrip("# ").split()
    servers = [dict(zip(columns, line.split())) for line in states[2:] if line.strip()]
    if not servers:
        raise Refused(f"HAProxy has no servers in {params['backend']}")
    stat = ask(params, f"show stat {servers[0]['be_id']} 4 -1").splitlines()
    names = stat[0].lstrip("# ").split(",")
    rows = [dict(zip(names, line.split(","))) for line in stat[1:] if line.strip()]
    sessions = {row["svname"]: int(row["scur"]) for row in rows}
    for server in servers:
        server["sessions"] = sessions[server["srv_name"]]
        server["admin"] = int(server["srv_admin_state"])
        server["up"] = int(server["srv_op_state"]) == RUNNING
    return servers


def is_of(slot, member):
    return slot["srv_addr"] in member.get("addresses", [])


def holds(slot, member, params):
    return is_of(slot, member) and int(slot["srv_port"]) == params["port"]


def state(slot):
    if slot["admin"] & MAINTENANCE and not slot["sessions"]:
        return {"state": "Absent"}
    if slot["admin"] & (MAINTENANCE | DRAIN):
        return {"state": "Draining", "inFlight": slot["sessions"]}
    return {"state": "Serving" if slot["up"] else "Unhealthy"}


def observe(employer, params, request):
    all_slots = slots(params)
    seen = []
    for member in request.get("members", []):
        # At any port: an earlier configuration may have had another one.
        states = [state(slot) for slot in all_slots if is_of(slot, member)]
        order = ["Serving", "Unhealthy", "Draining", "Absent"]
        most = dict(min(states, key=lambda s: order.index(s["state"]), default={"state": "Absent"}))
        if most["state"] == "Draining":
            most["inFlight"] = sum(one.get("inFlight", 0) for one in states)
        seen.append({"uid": member["uid"], **most})
    return {"members": seen}


def apply(employer, params, request):
    with busy:
        return applied(employer, params, request["generation"], request.get("members", []))


def applied(employer, params, generation, wanted):
    if generation < heard.get(employer["uid"], (0, []))[0]:
        return {"outcomes": []}
    members = [(one["member"], one["want"]) for one in wanted]
    serve = [member for member, want in members if want == "Serve" and member.get("addresses")]
    heard[employer["uid"]] = generation, [address for member in serve for address in member["addresses"]]
    all_slots = slots(params)
    free = [s for s in all_slots if s["admin"] & MAINTENANCE and not s["sessions"]
            and not any(holds(s, member, params) for member, _ in members)]
    outcomes = []
    for member in serve:
        slot = next((s for s in all_slots if holds(s, member, params)), None)
        if slot is None and not free:
            outcomes.append({"uid": member["uid"], "outcome": "Invalid", "message": "no free slot"})
            continue
        if slot is None:
            slot = free.pop()
            where = f"addr {member['addresses'][0]} port {params['port']}"
            ask(params, f"set server {params['backend']}/{slot['srv_name']} {where}")
            slot["srv_addr"], slot["srv_port"] = member["addresses"][0], params["port"]
        if slot["admin"] & (MAINTENANCE | DRAIN):
            ask(params, f"set server {params['backend']}/{slot['srv_name']} state ready")
    for slot in all_slots:
        who = employer["uid"], slot["srv_name"], slot["srv_addr"]
        if not any(holds(slot, member, params) for member in serve):
            leave(params, slot, who)
        elif who in leaving:
            leaving.pop(who).cancel()
    return {"outcomes": outcomes}


def leave(params, slot, who):
    """Drains a slot, and disables it once it has no sessions."""
    if slot["admin"] & MAINTENANCE:
        return
    if slot["admin"] & DRAIN:
        if not slot["sessions"]:
            ask(params, f"set server {params['backend']}/{slot['srv_name']} state maint")
    elif not DELAY:
        ask(params, f"set server {params['backend']}/{slot['srv_name']} state drain")
    elif who not in leaving:
        leaving[who] = threading.Timer(DELAY, drain_late, (params, who))
        leaving[who].start()


def drain_late(params, who):
    """Drains a slot unless its address was enabled again or reused: another member must not be drained."""
    uid, name, address = who
    with busy:
        if leaving.pop(who, None) and address not in heard[uid][1]:
            for slot in slots(params):
                if slot["srv_name"] == name and slot["srv_addr"] == address and not slot["admin"] & MAINTENANCE:
                    ask(params, f"set server {params['backend']}/{name} state drain")


def forget(employer, params, request):
    nobody = {"employer": employer, "generation": heard.get(employer["uid"], (0, []))[0], "members": []}
    apply(employer, params, nobody)
    return {}


class Handler(BaseHTTPRequestHandler):
    verbs = {"/v1/observe": observe, "/v1/apply": apply, "/v1/forget": forget}

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        try:
            self.answer(200, json.dumps(self.asked(request)))
        except (Refused, KeyError, ValueError) as refused:
            self.answer(400, f"{type(refused).__name__}: {refused}")
        except OSError as unreachable:
            self.answer(503, f"HAProxy: {unreachable}")

    def asked(self, request):
        if self.path == "/v1/handshake":
            if "v1" not in request.get("versions", []):
                raise Refused("this adapter speaks v1")
            return {"version": "v1", "name": "haproxy in Python"}
        employer = request["employer"]
        return self.verbs[self.path](employer, json.loads(employer["params"]), request)

    def answer(self, status, text):
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
