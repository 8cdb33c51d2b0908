"""fedray: simulate private cross-device federated learning on Ray, and audit what really happened.

    import fedray

    trace = fedray.run_scenario(fedray.Scenario.from_toml("scenarios/quickstart.toml"))
    print(fedray.audit_trace(trace))

`fedray` has the functions, and everything that they take and return. Tables of a scenario are in
`fedray.scenario`, strategies such as `BLT` and `Tree` in `fedray.mechanisms`, and narrower errors
in `fedray.base.errors`:

    from fedray.scenario import Population, Rounds

    fedray.Scenario(population=Population(devices=1000), rounds=Rounds(count=20, report_goal=50))

Names are imported when first used, so that importing fedray loads neither Ray nor torch.
They are listed in `fedray/__init__.pyi`, which type checkers read too. Paths may be strings. Bad
input, arguments of wrong types included, raises a `FedrayError`.
"""

from fedray.base.facade import lazily

__version__ = "0.2.0"

__getattr__, __dir__ = lazily(__name__)
