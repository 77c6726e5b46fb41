"""AWS target groups, emulated by moto, with draining targets, which moto lacks.

    python elb.py PORT SECONDS

Prints the ARN of a target group, and serves requests until it is killed. A deregistered target drains for
SECONDS. Every fifth call for a target group fails with Throttling, as AWS does when its rate limit is exceeded;
calls for others do not count, so that tests can compare durations. Calls for a target group that does not exist
take 1.2 seconds, and then fail.
"""

import collections
import sys
import time

import boto3
from moto.core import responses
from moto.elbv2 import models
from moto.server import ThreadedMotoServer

PORT, SECONDS = int(sys.argv[1]), float(sys.argv[2])
deregister, describe = models.FakeTargetGroup.deregister, models.ELBv2Backend.describe_target_health
drained_since = {}


def drain(group, targets):
    deregister(group, targets)
    for target in targets:
        drained_since[target["Id"]] = time.monotonic()
        group.terminated_targets[target["Id"]] = group.deregistered_targets.pop(target["Id"])


def describe_with_draining(backend, target_group_arn, targets):
    group = backend.target_groups.get(target_group_arn)
    if group is None:
        time.sleep(1.2)
        return describe(backend, target_group_arn, targets)
    for target in list(group.terminated_targets):
        drained = time.monotonic() - drained_since[target] > SECONDS
        if drained or target in group.targets:
            del group.terminated_targets[target]
    targets = targets or [*group.targets.values(), *group.terminated_targets.values()]
    return describe(backend, target_group_arn, targets)


models.FakeTargetGroup.deregister = drain
models.ELBv2Backend.describe_target_health = describe_with_draining

server = ThreadedMotoServer(ip_address="127.0.0.1", port=PORT, verbose=False)
server.start()
config = {"endpoint_url": f"http://127.0.0.1:{PORT}", "region_name": "eu-west-1"}
config |= {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
network = boto3.client("ec2", **config).describe_vpcs()["Vpcs"][0]["VpcId"]
created = boto3.client("elbv2", **config).create_target_group(
    Name="web", Protocol="HTTP", Port=8080, VpcId=network, TargetType="ip")

calls = collections.Counter()
dispatch = responses.BaseResponse.call_action


def throttle(response):
    group = response._get_param("TargetGroupArn")
    calls[group] += 1
    if calls[group] % 5 == 0:
        error = "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
        return 400, {}, error
    return dispatch(response)


responses.BaseResponse.call_action = throttle
print(created["TargetGroups"][0]["TargetGroupArn"], flush=True)
while True:
    time.sleep(3600)
