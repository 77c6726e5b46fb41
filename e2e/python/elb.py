"""AWS's target groups, emulated by moto, with what moto lacks: targets that drain for a while.

    python elb.py PORT SECONDS

Prints the ARN of a target group, and then answers until it is killed. Every fifth call is refused, as AWS
does with who calls too often.
"""

import sys
import time

import boto3
from moto.core import responses
from moto.elbv2 import models
from moto.server import ThreadedMotoServer

PORT, SECONDS = int(sys.argv[1]), float(sys.argv[2])
deregister, describe = models.FakeTargetGroup.deregister, models.ELBv2Backend.describe_target_health
since = {}


def drain(group, targets):
    deregister(group, targets)
    for target in targets:
        since[target["Id"]] = time.monotonic()
        group.terminated_targets[target["Id"]] = group.deregistered_targets.pop(target["Id"])


def told(backend, target_group_arn, targets):
    group = backend.target_groups[target_group_arn]
    for target in list(group.terminated_targets):
        over = time.monotonic() - since[target] > SECONDS
        if over or target in group.targets:
            del group.terminated_targets[target]
    targets = targets or [*group.targets.values(), *group.terminated_targets.values()]
    return describe(backend, target_group_arn, targets)


models.FakeTargetGroup.deregister = drain
models.ELBv2Backend.describe_target_health = told

server = ThreadedMotoServer(ip_address="127.0.0.1", port=PORT, verbose=False)
server.start()
known = {"endpoint_url": f"http://127.0.0.1:{PORT}", "region_name": "eu-west-1"}
known |= {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
network = boto3.client("ec2", **known).describe_vpcs()["Vpcs"][0]["VpcId"]
made = boto3.client("elbv2", **known).create_target_group(
    Name="web", Protocol="HTTP", Port=8080, VpcId=network, TargetType="ip")

calls = 0
dispatch = responses.BaseResponse.call_action


def sometimes(response):
    global calls
    calls += 1
    if calls % 5 == 0:
        error = "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
        return 400, {}, error
    return dispatch(response)


responses.BaseResponse.call_action = sometimes
print(made["TargetGroups"][0]["TargetGroupArn"], flush=True)
while True:
    time.sleep(3600)
