"""A bucket for a test, and short words for what is done to it."""

names = iter(f"bucket-{number}" for number in range(1000))


class Bucket:
    """A bucket of its own on a running server, and short words for what the tests do to it."""

    def __init__(self, client, name, prefix="/ds"):
        self.client = client
        self.name = name
        self.base = f"{prefix}/{name}"
        client.put(self.base).raise_for_status()

    def create(self, stream, body=b"", kind="text/plain", **headers):
        answer = self.client.put(f"{self.base}/{stream}", content=body, headers={"Content-Type": kind, **headers})
        assert answer.status_code == 201, answer.text

    def append(self, stream, body, kind="text/plain", **headers):
        answer = self.client.post(f"{self.base}/{stream}", content=body, headers={"Content-Type": kind, **headers})
        assert answer.status_code in (200, 204), answer.text

    def close(self, stream):
        assert self.client.post(f"{self.base}/{stream}", headers={"Stream-Closed": "true"}).status_code == 204

    def delete(self, stream):
        assert self.client.delete(f"{self.base}/{stream}").status_code == 204

    def feed(self, **query):
        return self.client.get(f"{self.base}/streams/feed", params=query)

    def page(self, **query):
        answer = self.feed(**query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["bucket_id"] == self.name
        assert answer.headers["Stream-Next-Position"] == page["next_position"]
        assert (answer.headers.get("Stream-Up-To-Date") == "true") == page["up_to_date"]
        return page

    def entries(self, after="earliest", **query):
        """All entries behind a position, over as many pages as it takes."""
        found = []
        while True:
            page = self.page(after=after, **query)
            found += page["entries"]
            after = page["next_position"]
            if page["up_to_date"]:
                return found

    def kinds(self, **query):
        return [(entry["stream"], entry["kind"]) for entry in self.entries(**query)]
