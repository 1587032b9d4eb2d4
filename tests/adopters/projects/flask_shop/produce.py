from shop import flask_app

client = flask_app.test_client()
for line in ("tea", "slow", "milk"):
    assert client.post("/orders/T0", json=line).status_code == 200
