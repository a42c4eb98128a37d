"""Central training: the union of all training parts at one site, the parts for scoring as in every other method."""

import numpy as np

from fedproin.data.location import Location
from fedproin.federation.site import Site


def test_one_site_trains_on_all_images_and_scores_are_those_of_every_site(federate):
    central, fedavg = federate("central").record, federate("fedavg").record
    all_images = sum(site.samples for site in fedavg.rounds[0].sites.values())
    assert [past.participants for past in central.rounds] == [["site-1"], ["site-1"]]
    assert [past.sites["site-1"].samples for past in central.rounds] == [all_images] * 2
    assert np.array_equal(np.sum(central.last.confusion, axis=1), np.sum(fedavg.last.confusion, axis=1))
    assert central.last.sites.keys() == fedavg.last.sites.keys()


def test_a_hospital_cannot_train_centrally(make_settings, tmp_path):
    from fedproin.federation.messages import Task

    (tmp_path / "manifest.csv").write_text("image,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(20)))
    for number in range(20):
        _picture(tmp_path / f"{number}.png")
    settings = make_settings(data={"classes": ["a", "b"]}, method={"name": "central"})
    site = Site("a", settings, Location(tmp_path, tmp_path / "cache", simulated=False), tmp_path / "own")
    model = {name: value.numpy() for name, value in site.model.state_dict().items()}
    task = Task("round", "ab" * 16, settings.digest(), 0, ("a", "b"), ("a",), False, None, model)
    assert site.run(task).error.startswith("Images of all sites together exist in a simulation only")


def _picture(path):
    from PIL import Image

    Image.new("RGB", (8, 8)).save(path)
