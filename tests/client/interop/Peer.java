// Java's own HTTP client as it comes: it offers HTTP/2 with every request that it sends in the clear.
//
// java Peer.java < requests: each line is METHOD, how the body goes ("none", "whole", "chunked"), the URL, the file with
// the body ("-" for none), and header lines as name=value, all parted by tabs. For each it prints the status, the length
// and the SHA-256 of what came back.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HexFormat;

public class Peer {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            var answer = client.send(request(line.split("\t")), BodyHandlers.ofByteArray());
            var digest = MessageDigest.getInstance("SHA-256").digest(answer.body());
            System.out.println(
                    answer.statusCode() + " " + answer.body().length + " " + HexFormat.of().formatHex(digest));
        }
    }

    static HttpRequest request(String[] fields) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(fields[2]))
                .method(fields[0], body(fields[1], fields[3]))
                .timeout(Duration.ofSeconds(60));
        for (var index = 4; index < fields.length; index += 1) {
            var header = fields[index].split("=", 2);
            request.header(header[0], header[1]);
        }
        return request.build();
    }

    static BodyPublisher body(String how, String file) throws Exception {
        return switch (how) {
            case "none" -> BodyPublishers.noBody();
            case "whole" -> BodyPublishers.ofByteArray(Files.readAllBytes(Path.of(file)));
            case "chunked" -> BodyPublishers.ofInputStream(() -> open(Path.of(file)));
            default -> throw new IllegalArgumentException(how);
        };
    }

    static java.io.InputStream open(Path file) {
        try {
            return Files.newInputStream(file);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
