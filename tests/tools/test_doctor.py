import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from fedproin.federation.identity import PACKAGE_FILE, running_identity
from fedproin.tools import machine
from fedproin.tools.cli import main
from fedproin.tools.doctor import check_data, check_training
from fedproin.tools.kit import read_kit
from fedproin.tools.reach import check_ports, check_server

CLASSES = ("mel", "nv", "vasc")
IMAGES = 40


@pytest.fixture
def pictures(tmp_path):
    """A table whose file names and patients are words that no output may have."""
    folder, rng = tmp_path / "pictures", np.random.default_rng(0)
    folder.mkdir()
    rows = ["image,label,patient"]
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(folder / f"secret{number}.png")
        rows.append(f"secret{number}.png,{CLASSES[number % 3]},smith{number // 2}")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def make_job(tmp_path, make_settings):
    def make(packed=None, **changes):
        config = tmp_path / "job" / "app" / "config"
        config.mkdir(parents=True, exist_ok=True)
        data = {"classes": list(CLASSES), "image_size": 16} | changes.pop("data", {})
        training = {"batch_size": 8} | changes.pop("training", {})
        settings = make_settings(data=data, training=training, **changes)
        (config / "settings.json").write_text(json.dumps(asdict(settings)))
        if packed:
            (config / PACKAGE_FILE).write_text(json.dumps(packed))
        return config.parents[1]

    return make


@pytest.fixture
def configured(make_kit, pictures):
    kit = make_kit()
    assert main(["site", "init", str(kit), "--data", str(pictures)]) == 0
    return kit


@pytest.fixture
def doctor(capsys):
    """Run `fedproin doctor ... --json`; returns the exit code and the findings of each code."""

    def run(*words: object):
        capsys.readouterr()
        code = main(["doctor", *map(str, words), "--json"])
        printed = capsys.readouterr()
        assert "secret" not in printed.out + printed.err
        assert "smith" not in printed.out + printed.err
        found = {}
        for line in json.loads(printed.out):
            assert line.keys() == {"code", "status", "message", "advice"}
            assert line["status"] == "ok" or line["advice"] or line["message"].endswith(".")
            found.setdefault(line["code"], []).append(line)
        return code, found

    return run


@pytest.fixture
def no_child(monkeypatch):
    """Spare a test the process that imports torch."""
    monkeypatch.setattr("fedproin.tools.doctor.check_training", lambda *_: [])


def statuses(found):
    return {code: {line["status"] for line in lines} for code, lines in found.items()}


def test_a_site_that_is_ready(configured, provisioned, make_job, serve, doctor):
    serve(provisioned["mine"] / "localhost")
    code, found = doctor(configured, "--job", make_job(packed=asdict(running_identity())))
    ready = ["package", "versions", "disk", "memory", "shm", "certificate", "local", "server", "data", "gpu"]
    assert (code, statuses(found)) == (0, {name: {"ok"} for name in [*ready, "training"]})
    assert "40 images in 20 groups, 3 classes" in found["data"][0]["message"]
    assert found["training"][0]["message"].startswith("2 steps in ")
    assert "images/s" in found["training"][0]["message"]
    assert "as the job needs it" in found["package"][0]["message"]
    assert not any((configured / "fedproin" / "state").glob("*"))


def test_prints_lines_for_people_and_an_exit_code(no_child, configured, capsys):
    capsys.readouterr()
    assert main(["doctor", str(configured)]) == 1
    printed = capsys.readouterr().out
    assert "ok    certificate  site-1 of hospital1" in printed
    assert "fail  server       Nothing listens at localhost:" in printed
    assert " -> ask the coordinator whether the server runs" in printed
    assert "warn  training     Not tried" in printed


def test_the_training_of_a_job_without_classes_is_a_sentence(configured, make_job, doctor):
    _, found = doctor(configured, "--job", make_job(data={"classes": []}))
    assert found["training"][0]["message"].startswith("The job must name data.classes in order")


def test_training_that_runs_out_of_memory_is_a_line(configured, monkeypatch):
    monkeypatch.setattr("fedproin.tools.doctor._in_child", _die)
    (finding,) = check_training(read_kit(configured), None)
    assert (finding.code, finding.status) == ("training", "fail")
    assert "was killed" in finding.message


def _die(*_: object):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def try_training(configured, make_settings):
    """The trial in this process, which has torch already."""
    from fedproin.data.location import locate
    from fedproin.federation.trainer_process import SiteArguments
    from fedproin.tools import trial

    def run(**changes):
        settings = make_settings(data={"classes": list(CLASSES), "image_size": 16}, **changes)
        directory = configured / "fedproin"
        finding = trial.try_training(SiteArguments("site-1", settings, locate(settings, False, configured), directory))
        assert not any((directory / "state").glob("*"))
        return finding

    return run


def test_two_batches_are_taken_from_all_over_the_part(try_training, monkeypatch):
    from fedproin.tools.trial import TwoBatches

    parts, original = {}, TwoBatches._part
    monkeypatch.setattr(TwoBatches, "_part", lambda self, name: parts.setdefault(name, original(self, name)))
    assert try_training(training={"batch_size": 4, "local_epochs": 3}).message.startswith("2 steps in ")
    assert len(parts["train"]) == 8
    assert np.ptp(parts["train"].indices) > IMAGES // 2


def test_a_site_without_training_images(try_training, pictures):
    rows = (pictures / "metadata.csv").read_text().splitlines()
    (pictures / "metadata.csv").write_text("\n".join([rows[0] + ",split", *(row + ",test" for row in rows[1:])]))
    finding = try_training()
    assert (finding.status, finding.message) == ("fail", "No image is in the training part")


def test_a_loss_that_is_not_finite(try_training):
    finding = try_training(training={"batch_size": 4, "learning_rate": 1e20})
    assert (finding.status, finding.message) == ("fail", "The loss is not a finite number")


def test_a_failure_of_training_is_a_sentence_and_its_details_stay(try_training, monkeypatch, configured):
    monkeypatch.setattr("fedproin.federation.site.train_round", lambda *_: 1 / 0)
    finding = try_training()
    assert finding.message == (
        "Training failed with ZeroDivisionError; the details are in fedproin/error.log at the site."
    )
    assert "ZeroDivisionError" in (configured / "fedproin" / "error.log").read_text()


def test_a_device_that_is_not_there(try_training, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "this machine has no usable GPU" in try_training(training={"device": "cuda"}).message


def test_a_job_packed_with_other_code_fails(no_child, configured, make_job, doctor):
    job = make_job(packed={"version": "9.9.9", "hash": "0" * 64})
    code, found = doctor(configured, "--job", job)
    assert code == 1
    assert found["package"][0]["status"] == "fail"
    assert "9.9.9+000000000000" in found["package"][0]["message"]
    job = make_job(packed={"version": "9.9.9"})
    assert "is damaged" in doctor(configured, "--job", job)[1]["package"][0]["message"]


def test_problems_of_the_data_are_counts(no_child, configured, pictures, make_job, doctor):
    (pictures / "secret1.png").unlink()
    (pictures / "secret2.png").write_text("no picture")
    code, found = doctor(configured, "--job", make_job(data={"classes": ["mel", "nv", "bcc"]}))
    messages = [line["message"] for line in found["data"] if line["status"] == "fail"]
    assert code == 1
    assert [message.split(":")[0] for message in messages] == [
        "1 of 40 images are missing",
        "1 of 40 images cannot be decoded",
        "13 of 40 images have a label that is not among the job's classes (vasc)",
    ]
    assert found["training"][0]["message"] == "Not tried: the data cannot be used as it is"


def test_a_table_that_cannot_be_read_is_one_line(no_child, configured, pictures, doctor):
    (pictures / "metadata.csv").write_text("image,label\nsecret1.png,\n")
    assert statuses(doctor(configured)[1])["data"] == {"fail"}


def test_data_that_has_gone_is_one_line(no_child, configured, pictures, doctor):
    pictures.rename(pictures.with_name("gone"))
    (line,) = doctor(configured)[1]["data"]
    assert line["message"].startswith("There is no data at the given path")


def test_a_site_without_data_is_one_line(no_child, make_kit, doctor):
    code, found = doctor(make_kit())
    assert code == 1
    assert statuses(found)["local"] == {"fail"}
    assert found["data"][0]["message"].startswith("This site has no data configured")


def test_classes_that_are_too_small_for_the_site(configured, pictures):
    (configured / "local" / "fedproin.json").write_text(json.dumps({"data": str(pictures), "minimum_count": 14}))
    fail = [finding for finding in check_data(read_kit(configured), None) if finding.status == "fail"]
    assert [finding.message for finding in fail] == [
        "2 classes have fewer than 14 images, this site's minimum_count (nv, vasc)"
    ]


def test_a_rehearsal_needs_no_data(make_kit, make_settings):
    settings = make_settings(data={"synthetic": True})
    (finding,) = check_data(read_kit(make_kit()), settings)
    assert finding.status == "ok"


def test_promised_gpus_must_be_there(make_kit, pictures, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    kit = make_kit()
    main(["site", "init", str(kit), "--data", str(pictures), "--gpus", "2"])
    (finding,) = check_training(read_kit(kit), None)
    assert (finding.code, finding.status) == ("gpu", "fail")
    assert finding.message == "local/resources.json promises 2 GPUs and torch finds 0"


def test_an_expired_certificate_is_a_line(make_kit, write_certificate, doctor):
    kit = make_kit("lead@coordinator.org")
    write_certificate(kit, begin=-20, end=-10)
    (kit / "startup" / "client.key").chmod(0o600)
    code, found = doctor(kit)
    assert code == 1
    assert "expired" in found["certificate"][0]["message"]
    assert "local" not in found


def test_a_server_kit_checks_its_ports(make_kit, serve, doctor):
    kit = make_kit("localhost")
    assert main(["site", "init", str(kit)]) == 0
    code, found = doctor(kit)
    assert code == 0
    assert [line["status"] for line in found["port"]] == ["ok", "ok"]
    assert "data" not in found
    read = read_kit(kit)
    serve(kit)
    serve(kit, read.admin_port, tls=False)
    by_port = {finding.message.split("port ")[1].split(" ")[0]: finding for finding in check_ports(read)}
    assert by_port[str(read.port)].message == f"This server is running and listens at port {read.port}"
    assert by_port[str(read.admin_port)].status == "fail"
    assert "Address already in use" in by_port[str(read.admin_port)].message


class TestServer:
    """What a real TLS server on loopback makes of a kit."""

    def test_accepts(self, provisioned, serve):
        serve(provisioned["mine"] / "localhost")
        finding = check_server(read_kit(provisioned["mine"] / "site-1"))
        assert (finding.status, finding.message.split(" ", 1)[1]) == ("ok", "accepts this certificate (TLSv1.3)")

    def test_accepts_in_silence(self, provisioned, serve):
        serve(provisioned["mine"] / "localhost", speaks=False)
        assert check_server(read_kit(provisioned["mine"] / "site-1")).status == "ok"

    def test_does_not_listen(self, make_kit):
        assert "Nothing listens at localhost:" in check_server(read_kit(make_kit())).message

    def test_has_an_unknown_name(self, make_kit):
        kit = make_kit()
        path = kit / "startup" / "fed_client.json"
        path.write_text(path.read_text().replace("localhost:", "no.such.name.invalid:"))
        assert check_server(read_kit(kit)).message == "The name no.such.name.invalid is not known here"

    def test_is_of_another_root(self, provisioned, make_kit, serve):
        serve(provisioned["mine"] / "localhost")
        kit = make_kit()
        for name in ("rootCA.pem", "client.crt", "client.key"):
            (kit / "startup" / name).write_bytes((provisioned["other"] / "site-1" / "startup" / name).read_bytes())
        assert "is of another root than this kit's rootCA.pem" in check_server(read_kit(kit)).message

    def test_refuses_the_certificate(self, provisioned, make_kit, serve):
        serve(provisioned["mine"] / "localhost")
        kit = make_kit()
        for name in ("client.crt", "client.key"):
            (kit / "startup" / name).write_bytes((provisioned["other"] / "site-1" / "startup" / name).read_bytes())
        assert "refuses this certificate" in check_server(read_kit(kit)).message

    def test_has_an_expired_certificate_itself(self, make_kit, write_certificate, serve):
        server, kit = make_kit("localhost"), make_kit()
        write_certificate(server, begin=-20, end=-10, name="localhost")
        serve(server)
        (kit / "startup" / "rootCA.pem").write_bytes((server / "startup" / "rootCA.pem").read_bytes())
        assert "has expired" in check_server(read_kit(kit)).message

    def test_has_a_certificate_for_another_name(self, make_kit, write_certificate, serve):
        server, kit = make_kit("localhost"), make_kit()
        write_certificate(server, name="fl.example.org")
        serve(server)
        (kit / "startup" / "rootCA.pem").write_bytes((server / "startup" / "rootCA.pem").read_bytes())
        assert "is for another name than localhost" in check_server(read_kit(kit)).message

    def test_speaks_no_tls(self, provisioned, serve):
        serve(provisioned["mine"] / "localhost", tls=False)
        assert "speaks no TLS" in check_server(read_kit(provisioned["mine"] / "site-1")).message


class TestMachine:
    """Thresholds, and what a package of the wrong version looks like."""

    def test_versions_that_do_not_fit(self, monkeypatch):
        monkeypatch.setattr(machine, "installed_version", {"nvflare": "2.8.1", "torch": "uninstalled"}.get)
        monkeypatch.setattr(machine, "requires", lambda _: ["nvflare<2.10,>=2.9", "torch>=2.9", 'x>1; extra == "test"'])
        finding = machine.check_versions()
        assert finding.status == "fail"
        assert finding.message == "nvflare 2.8.1 (needs <2.10,>=2.9), torch uninstalled (needs >=2.9)"

    @pytest.mark.parametrize(("gib", "status"), [(1, "fail"), (5, "warn"), (20, "ok")])
    def test_disk(self, monkeypatch, tmp_path, gib, status):
        usage = machine.shutil.disk_usage(tmp_path)._replace(free=gib * 2**30)
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
        assert machine.check_disk(tmp_path).status == status

    @pytest.mark.parametrize(
        ("available", "limit", "status"),
        [(8, "max", "ok"), (3, "max", "warn"), (1, "max", "fail"), (8, "1000", "fail")],
    )
    def test_memory(self, monkeypatch, tmp_path, available, limit, status):
        (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available * 2**20} kB\n")
        (tmp_path / "limit").write_text(f"{limit}\n")
        monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(machine, "CGROUP_LIMIT", tmp_path / "limit")
        assert machine.check_memory().status == status

    def test_a_system_that_does_not_tell(self, monkeypatch, tmp_path):
        monkeypatch.setattr(machine, "MEMINFO", tmp_path / "nowhere")
        monkeypatch.setattr(machine, "SHARED", tmp_path / "nowhere")
        assert machine.check_memory().status == machine.check_shared_memory().status == "warn"

    def test_small_shared_memory(self, monkeypatch):
        usage = machine.shutil.disk_usage("/")._replace(total=2**20)
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
        assert "--shm-size" in machine.check_shared_memory().advice


def test_the_command_line_imports_no_torch():
    code = (
        "import sys, fedproin.tools.cli; print([name for name in ('torch', 'monai', 'nvflare') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"
