"""What the nodes of a cluster can carry, from what Ray says of them."""

import pytest

from harness.dispatch.ray.fleet import capacity, hosts_for, loopback, read_nodes, units_of


def row(name, device=None, *, simulated=False, alive=True, **resources):
    labels = {"harness/node": name}
    if device:
        labels["harness/device"] = device
    if simulated:
        labels["harness/simulated"] = "1"
    return {"NodeID": f"id-{name}", "Alive": alive, "Labels": labels, "Resources": resources, "NodeManagerHostname": "host"}


def names(nodes):
    return [node.name for node in nodes]


class TestCapacity:
    def test_counts_the_units_of_live_nodes(self):
        nodes = read_nodes(
            [
                row("a", "h200", CPU=8.0, GPU=2.0, harness_h200=2.0),
                row("b", "h200", CPU=8.0, GPU=1.0, harness_h200=1.0),
                row("c", "h200", CPU=8.0, GPU=8.0, harness_h200=8.0, alive=False),
            ]
        )
        assert {"h200": 3, "b200": 0, "cpu": 16} == capacity(nodes, ["h200", "b200", "cpu"])

    @pytest.mark.parametrize(
        ("resources", "units"),
        [({"GPU": 2.0}, 0), ({"harness_h200": 2.0}, 0), ({"GPU": 1.0, "harness_h200": 2.0}, 1), ({"GPU": 2.0, "harness_b200": 2.0}, 0)],
        ids=["no resource", "no GPU", "fewer GPUs", "another's resource"],
    )
    def test_needs_label_resource_and_gpu(self, resources, units):
        (node,) = read_nodes([row("a", "h200", CPU=8.0, **resources)])
        assert units == capacity([node], ["h200"])["h200"]
        assert (units == 0) == (node.problem is not None)

    def test_a_simulated_node_needs_no_gpu(self):
        nodes = read_nodes([row("sim", "h200", simulated=True, CPU=1.0, harness_h200=1.0)])
        assert {"h200": 1} == capacity(nodes, ["h200"])

    def test_a_simulated_node_stands_back_for_a_real_one(self):
        real = row("real", "h200", CPU=8.0, GPU=1.0, harness_h200=1.0)
        nodes = read_nodes([row("sim", "h200", simulated=True, CPU=1.0, harness_h200=1.0), real])
        assert ["real"] == names(units_of("h200", nodes))
        assert {"h200": 1} == capacity(nodes, ["h200"])

    def test_an_empty_cluster_has_none(self):
        assert {"h200": 0, "cpu": 0} == capacity([], ["h200", "cpu"])


class TestHosts:
    GPU = row("gpu", "h200", CPU=8.0, GPU=1.0, harness_h200=1.0)
    PLAIN = row("plain", CPU=4.0)
    SIM = row("sim", "b200", simulated=True, CPU=1.0, harness_b200=1.0)

    def test_a_static_job_goes_to_the_node_that_stands_for_its_device(self):
        nodes = read_nodes([self.GPU, self.PLAIN, self.SIM])
        assert ["sim"] == names(hosts_for("b200", nodes))

    def test_other_jobs_go_where_nothing_is_measured(self):
        nodes = read_nodes([self.GPU, self.PLAIN, self.SIM])
        assert ["plain", "sim"] == names(hosts_for("h200", nodes))
        assert ["plain", "sim"] == names(hosts_for("cpu", nodes))

    def test_a_gpu_host_compiles_where_nobody_else_can(self):
        assert ["gpu"] == names(hosts_for("h200", read_nodes([self.GPU])))

    def test_a_host_that_failed_is_left_out(self):
        nodes = read_nodes([self.PLAIN, self.SIM])
        assert ["plain"] == names(hosts_for("b200", nodes, not_on=["sim"]))
        assert [] == names(hosts_for("b200", nodes, not_on=["sim", "plain"]))


def test_a_node_without_our_label_is_called_by_its_host():
    (node,) = read_nodes([{"NodeID": "x", "Alive": True, "Labels": {}, "Resources": {}, "NodeManagerHostname": "host"}])
    assert "host" == node.name


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.2", True), ("localhost", True), ("::1", True), ("[::1]", True), ("10.0.0.7", False), ("gpu-host", False), ("", False)],
)
def test_loopback(address, expected):
    assert expected == loopback(address)
